"""The hub: read from the cache, and a quick one-line error when it is unreachable."""

import time

import huggingface_hub
import pytest
from huggingface_hub import constants

from cse.data.hub import hub_rows
from cse.errors import CseError, OfflineError

HUB_ID = "princeton-nlp/datasets-for-simcse"


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """No network and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_no_network_is_one_line_and_not_tried_again(offline, monkeypatch):
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with pytest.raises(OfflineError) as caught:
        list(hub_rows(HUB_ID, "triplets", file="nli_for_simcse.csv"))
    message = str(caught.value)
    assert message.startswith(HUB_ID)
    assert "data.source: files" in message
    assert "HF_HOME" in message
    assert "\n" not in message


def test_an_unreachable_hub_is_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with pytest.raises(OfflineError):
        hub_rows(HUB_ID, "sentences", file="wiki1m_for_simcse.txt")
    assert constants.HF_HUB_OFFLINE is False


@pytest.fixture
def cached(offline):
    """A cache that has three files of a data set."""
    commit = "0" * 40
    folder = offline / "datasets--princeton-nlp--datasets-for-simcse"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit, encoding="utf-8")
    (folder / "snapshots" / commit).mkdir(parents=True)
    for name, text in {"b-2.txt": "three\n", "b-1.txt": "one\ntwo\n", "c-1.txt": "four\n"}.items():
        (folder / "snapshots" / commit / name).write_text(text, encoding="utf-8")


def test_a_cached_file_is_read_without_network(cached):
    assert [row.texts for row in hub_rows(HUB_ID, "sentences", file="b-1.txt")] == [("one",), ("two",)]


def test_a_pattern_names_the_files_of_a_split(cached, monkeypatch):
    with pytest.raises(OfflineError, match=r"simcse/b-\*\.txt: the hub cannot be reached"):
        hub_rows(HUB_ID, "sentences", file="b-*.txt")
    monkeypatch.setattr(
        huggingface_hub, "list_repo_files", lambda *_, **__: ["c-1.txt", "b-2.txt", "b-1.txt", "README"]
    )
    assert [row.texts[0] for row in hub_rows(HUB_ID, "sentences", file="b-*.txt")] == ["one", "two", "three"]
    with pytest.raises(CseError, match=r"no file d-\* at revision 'main'; check data.hub_file"):
        hub_rows(HUB_ID, "sentences", file="d-*")


def test_other_failures_are_one_line(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CseError, match=r"a/b/c.csv: RuntimeError: first line$"):
        hub_rows("a/b", "pairs", file="c.csv")
