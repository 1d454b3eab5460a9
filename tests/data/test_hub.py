"""The hub: read from the cache, and a quick one-line error when it is unreachable."""

import time

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from cse.data.hub import hub_rows
from cse.errors import CseError, OfflineError
from cse.settings.data import DataSettings

HUB_ID = "princeton-nlp/datasets-for-simcse"


def rows_of(view, file, tell=print, **how):
    return hub_rows(DataSettings(source="hub", view=view, hub_file=file, **{"hub_id": HUB_ID, **how}), tell)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """No network and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_an_unreachable_hub_is_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with pytest.raises(OfflineError, match=rf"^{HUB_ID}.*data\.source: files, or set HF_HOME to a cache that has it$"):
        rows_of("sentences", "wiki1m_for_simcse.txt")
    assert constants.HF_HUB_OFFLINE is False


@pytest.fixture
def cached(offline):
    """A cache that has a text file of a data set, and a split in two."""
    commit = "0" * 40
    folder = offline / "datasets--princeton-nlp--datasets-for-simcse"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit, encoding="utf-8")
    files = folder / "snapshots" / commit
    (files / "data").mkdir(parents=True)
    (files / "wiki1m_for_simcse.txt").write_text("one\ntwo\n", encoding="utf-8")
    parts = {"a": [("is it", "a", 0.9), ("what", "a", 0.2)], "b": [("no", "b", 4.6), ("yes", "b", 5.0)]}
    for name, rows in parts.items():
        text, label, score = zip(*rows, strict=True)
        table = pa.table({"sentence1": text, "sentence2": text[::-1], "label": label, "score": score})
        pq.write_table(table, files / f"data/train-{name}.parquet")
    return offline


def test_a_cached_file_is_read_without_network(cached):
    rows = rows_of("sentences", "wiki1m_for_simcse.txt")
    assert [row.texts for row in rows] == [("one",), ("two",)]


def test_the_files_of_a_pattern_are_read_as_one(cached, monkeypatch):
    """Each row has a number of its own, and a score of 0.9 is of 5 if another file says so."""
    with pytest.raises(OfflineError, match=r"data/train-\*\.parquet: the hub cannot be reached, and .* only some"):
        rows_of("pairs", "data/train-*.parquet")
    names = ["data/train-b.parquet", "README.md", "old/data/train-c.parquet", "data/train-a.parquet"]
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda *_, **__: names)
    labelled = list(rows_of("categories", "data/train-*.parquet", columns=["sentence1", "label"]))
    assert [(row.line, row.texts[0], row.label) for row in labelled] == [
        (1, "is it", "a"), (2, "what", "a"), (3, "no", "b"), (4, "yes", "b"),
    ]  # fmt: skip
    told: list[str] = []
    columns = ["sentence1", "sentence2", "score"]
    assert len(list(rows_of("pairs", "data/train-*.parquet", told.append, columns=columns))) == 4
    assert told == ["scores from 0 to 5: pairs of 4 or more are positives, the others are left out"]
    with pytest.raises(CseError, match=r"no file x-\*.parquet at revision 'main'; check data.hub_file"):
        rows_of("pairs", "x-*.parquet")
    with pytest.raises(CseError, match=r"must be \.parquet"):
        rows_of("pairs", "x-*.csv")


def test_other_failures_are_one_line(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CseError, match=r"a/b/c.csv: RuntimeError: first line$"):
        rows_of("pairs", "c.csv", hub_id="a/b")
