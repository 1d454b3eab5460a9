"""The hub: read from the cache, and a quick one-line error when it is unreachable."""

import time

import huggingface_hub
import pytest
from huggingface_hub import constants

from cse.data.sources import open_sources
from cse.errors import OfflineError
from cse.settings.data import DataSettings
from tests.parts import refusal
from tests.rows import write_lines

HUB_ID = "princeton-nlp/datasets-for-simcse"


def rows_of(view, file, **how):
    return open_sources(DataSettings(source="hub", view=view, hub_file=file, **{"hub_id": HUB_ID, **how}))[0].rows


def test_an_unreachable_hub_is_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with pytest.raises(OfflineError, match=rf"^{HUB_ID}.*data\.source: files, or set HF_HOME to a cache that has it$"):
        rows_of("sentences", "wiki1m_for_simcse.txt")
    assert constants.HF_HUB_OFFLINE is False


def test_a_cached_file_is_read_without_network(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit, folder = "0" * 40, tmp_path / "datasets--princeton-nlp--datasets-for-simcse"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit, encoding="utf-8")
    write_lines(folder / "snapshots" / commit / "wiki1m_for_simcse.txt", ["one", "two"])
    assert [row.texts for row in rows_of("sentences", "wiki1m_for_simcse.txt")] == [("one",), ("two",)]


def test_other_failures_are_one_line(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refusal(rows_of, "pairs", "c.csv", hub_id="a/b").endswith("a/b/c.csv: RuntimeError: first line")
