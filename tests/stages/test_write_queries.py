"""Queries written for documents: resumed after a kill, searched for, and what `cse prepare` makes of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cse.data.prepare import prepare
from cse.data.store import PreparedData, texts_in
from cse.errors import CseError
from cse.model.writer import Writer
from cse.settings.groups.data import DataSettings, SourceSettings
from cse.stages import write_queries as stage
from cse.stages.write_queries import Choices, RoundTrip, write_queries
from cse.training.collection import pairs_of
from tests.model.writers import make_writer
from tests.tiny import WORDS, make_backbone_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> Path:
    """Thirty documents of the tiny vocabulary, one of them twice and one empty."""
    monkeypatch.setattr(stage, "SCRATCH", tmp_path / "scratch")
    rows = [{"title": "", "text": " ".join(WORDS[k % 37 : k % 37 + 2 + k % 4]) + "."} for k in range(30)]
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0], {"title": "", "text": ""}]))
    (tmp_path / "instruction.txt").write_text("{document}")
    return file


def choices(corpus: Path, **changes) -> Choices:
    model = corpus.parent / "model"
    if not model.is_dir():
        make_writer(model)
    usual = {"model": str(model), "instruction": corpus.parent / "instruction.txt", "temperature": 1.0, "batch_size": 4}
    return Choices(**usual | {"query_tokens": 5} | changes)


def rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_query_stands_beside_its_document_as_the_collection_holds_it(corpus, tmp_path, capsys):
    count = write_queries(corpus, tmp_path / "queries.jsonl", choices(corpus, documents=20), None)
    found = rows(tmp_path / "queries.jsonl")
    documents = {json.loads(line)["text"] for line in corpus.read_text().splitlines()}
    assert count == len(found) > 20 and {row["document"] for row in found} <= documents
    told = capsys.readouterr().err
    assert "2 queries for each of 20 of 30 documents" in told
    assert " of 40 left out: repeats itself" in told
    assert not [*(tmp_path / "scratch").rglob("*.jsonl")]  # the draft


def test_a_run_that_stops_goes_on_where_it_was_and_writes_the_same_file(corpus, tmp_path, monkeypatch, capsys):
    write_queries(corpus, tmp_path / "whole.jsonl", choices(corpus), None)
    write, calls = Writer.write, []

    def stop_at_the_fourth(self, documents, *rest):
        calls.append(documents)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return write(self, documents, *rest)

    monkeypatch.setattr(Writer, "write", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        write_queries(corpus, tmp_path / "queries.jsonl", choices(corpus), None)
    (draft,) = (tmp_path / "scratch").rglob("*.jsonl")
    with draft.open("a") as stream:
        stream.write("[3, [[")  # as a killed process leaves it
    write_queries(corpus, tmp_path / "queries.jsonl", choices(corpus), None)
    assert "12 documents were done by an earlier run" in capsys.readouterr().err
    assert len(calls) == 4 + 5  # of eight batches, three were there
    assert (tmp_path / "queries.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_other_choices_start_over(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stage, "clean", lambda *_: pytest.fail("stopped while the draft is there"))
    with pytest.raises(pytest.fail.Exception):
        write_queries(corpus, tmp_path / "queries.jsonl", choices(corpus), None)
    monkeypatch.undo()
    monkeypatch.setattr(stage, "SCRATCH", tmp_path / "scratch")
    write_queries(corpus, tmp_path / "queries.jsonl", choices(corpus, seed=1), None)
    assert "earlier run" not in capsys.readouterr().err


def test_what_was_written_is_kept_until_a_file_stands(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stage, "_found_again", lambda *_: [])
    with pytest.raises(CseError, match="no usable query"):
        write_queries(corpus, tmp_path / "queries.jsonl", choices(corpus), RoundTrip(1, "any"))
    monkeypatch.setattr(Writer, "write", lambda *_: pytest.fail("written again"))
    assert write_queries(corpus, tmp_path / "queries.jsonl", choices(corpus), None) > 20
    assert "30 documents were done by an earlier run" in capsys.readouterr().err


def test_a_query_stays_if_a_search_finds_its_document_among_the_first(corpus, tmp_path, capsys):
    encoder = make_backbone_folder(tmp_path / "encoder", "bert", pooling="mean")
    every = write_queries(corpus, tmp_path / "all.jsonl", choices(corpus), None)
    some = write_queries(corpus, tmp_path / "some.jsonl", choices(corpus), RoundTrip(5, str(encoder)))
    assert 0 < some < every
    assert f"{every - some} left out: own document not among the first 5" in capsys.readouterr().err
    assert write_queries(corpus, tmp_path / "some.jsonl", choices(corpus), RoundTrip(30, str(encoder))) == every


def test_prepared_as_stand_ins_of_the_same_documents_or_as_labels(corpus, tmp_path):
    out = tmp_path / "queries.jsonl"
    write_queries(corpus, out, choices(corpus), None)

    def prepared(**of_written):
        written = SourceSettings(name="written", path=str(out), view="pairs", **of_written)
        settings = DataSettings(
            source="files",
            view="documents",
            pairs=["stand_ins"],
            train_path=str(corpus),
            stsb_dev=False,
            more=[written],
        )
        prepare(settings, tmp_path / "prepared", progress=False)
        data = PreparedData(tmp_path / "prepared")
        return [data, data.of("written")]

    sources = prepared(pairs=["stand_ins"])
    assert [data.made_from for data in sources] == ["stand_ins", "stand_ins"]
    assert next(texts_in(sources[1].train, "sent0")) == rows(out)[0]["query"]
    pairs = pairs_of([(data.train, True) for data in sources])
    assert len(pairs.documents) == 30  # no document comes in two forms
    assert prepared()[1].made_from is None


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"temperature": 0.0}, "--queries 2: temperature 0 writes the same query again"),
        ({"instruction": Path("nothing.txt")}, "--instruction nothing.txt: cannot be read"),
        ({"query_tokens": 1, "count": 1, "temperature": 0.01}, "no usable query of 30; try a larger model"),
    ],
)
def test_what_cannot_be_done_is_one_line(corpus, tmp_path, monkeypatch, changes, line):
    if "query_tokens" in changes:
        monkeypatch.setattr(Writer, "write", lambda self, documents, *_: [["!"] for _ in documents])
    with pytest.raises(CseError, match=line):
        write_queries(corpus, tmp_path / "queries.jsonl", choices(corpus, **changes), None)
    assert not (tmp_path / "queries.jsonl").exists()


def test_a_file_of_something_else_stays(corpus, tmp_path):
    with pytest.raises(CseError, match="exists and is not an earlier output"):
        write_queries(corpus, corpus, choices(corpus), None)


@pytest.mark.slow
def test_a_killed_process_goes_on_where_it_was(corpus, tmp_path):
    make_writer(tmp_path / "model")
    command = [sys.executable, "-m", "cse.cli", "write-queries", str(corpus), "--model", str(tmp_path / "model")]
    command += ["--instruction", str(tmp_path / "instruction.txt"), "--found-in", "0", "--batch-size", "1"]
    command += ["--query-tokens", "400", "--out", str(tmp_path / "queries.jsonl")]
    environment = os.environ | {"CSE_SCRATCH": str(tmp_path / "scratch"), "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while len(drafts := [*tmp_path.glob("scratch/written/*.jsonl")]) == 0 or drafts[0].read_bytes().count(b"\n") < 3:
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    done = drafts[0].read_bytes().count(b"\n")
    assert 3 <= done < 30 and not (tmp_path / "queries.jsonl").exists()
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert f"{done} documents were done by an earlier run" in again.stderr
    same = Choices(str(tmp_path / "model"), tmp_path / "instruction.txt", batch_size=1, query_tokens=400)
    write_queries(corpus, tmp_path / "whole.jsonl", same, None)  # not stopped
    assert (tmp_path / "queries.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
