"""The full evaluation: one encoder pass over the available data, settings with every number, and its record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cse.artifact import write_sealed
from cse.data.suite import SuiteData, only_pairs
from cse.data.tasks.kinds import Splits, TransferTask
from cse.evaluation.linear import FULL
from cse.evaluation.record import RECORD_FILE, read_record, write_record
from cse.evaluation.retrieval import CANDIDATES, QUERY
from cse.evaluation.suite import evaluate_suite
from cse.evaluation.table import format_suite
from tests.evaluation.test_sts import FakeEncoder, make_captions, make_task
from tests.evaluation.test_transfer import part
from tests.parts import refusal

QUICK = dataclasses.replace(FULL, folds=3, max_epoch=2)


def make_suite(folder: Path, spoken: Callable[[str], str] = str) -> SuiteData:
    """Some of every kind of task; ``spoken`` says each text in other words."""

    def said(pairs, **changes):
        first, second = (list(map(spoken, side)) for side in (pairs.sentence1, pairs.sentence2))
        return dataclasses.replace(pairs, sentence1=first, sentence2=second, **changes)

    stsb = {split: said(make_task(f"STS-B {split}", 50)) for split in ("train", "dev", "test")}
    stsb["test"].score[:4] = 5
    sts = [said(make_task("STS12", 70)), dataclasses.replace(stsb["test"], name="STS-B"), Splits("STS-B", stsb)]
    transfer = [TransferTask(name, part(40, 2)) for name in ("CR", "MR")]
    return SuiteData([*sts, *transfer, said(make_captions(folder))], missing=["TREC (TREC/train_5500.label)"])


@pytest.fixture
def data(tmp_path) -> SuiteData:
    return make_suite(tmp_path)


def test_a_sentence_of_several_tasks_is_encoded_once(data):
    encoder = FakeEncoder()
    evaluate_suite(encoder, data, classifier=QUICK)
    ((sentences, *_),) = encoder.calls
    assert len(sentences) == len(set(sentences))
    tasks = [*data.sts, *data.stsb.values()]
    texts = [text for task in [*tasks, data.cxc] for text in (*task.sentence1, *task.sentence2)]
    texts += [text for task in data.transfer for text in task.train.texts]
    assert set(sentences) == {*texts, QUERY, *CANDIDATES}


def test_a_measure_that_does_not_exist_costs_no_other(data):
    class Silent(FakeEncoder):
        def vector(self, sentence):
            return np.zeros(6, np.float32) if sentence.endswith("number 7") else super().vector(sentence)

    results = evaluate_suite(Silent(), data, classifier=QUICK)
    assert results.space is None and results.cxc is not None
    assert "alignment and uniformity (uniformity: sentence" in results.missing[-2]
    assert "zero vector" in format_suite({"model": results})


def test_only_what_a_measure_reads_is_encoded_and_missed(data):
    encoder = FakeEncoder()
    results = evaluate_suite(encoder, data, measures=("cxc",))
    ((sentences, *_),) = encoder.calls
    assert set(sentences) == {*data.cxc.sentence1, *data.cxc.sentence2}
    assert results.missing == []  # TREC was not asked for
    assert (results.sts, results.transfer, results.retrieval, results.space) == (None, None, None, None)


def test_a_measure_asked_for_alone_is_an_error_where_it_does_not_exist(data):
    data.sts[0].score[:] = 3
    said = refusal(evaluate_suite, FakeEncoder(), data, measures=("sts",))
    assert "STS12: all 70 gold scores are equal (3), so there is no rank correlation" in said
    together = evaluate_suite(FakeEncoder(), data, measures=("sts", "cxc"))
    assert together.sts is None
    assert together.missing[0].startswith("STS (STS12: all 70 gold scores are equal")
    said = refusal(evaluate_suite, FakeEncoder(), only_pairs(data.sts), measures=("transfer",))
    assert "no data for transfer: without MR (no SentEval folder)" in said


@pytest.fixture
def written(tmp_path):
    task = make_task("STS-B", 60)
    task.score[:3] = 5
    data = SuiteData([task, Splits("STS-B", {"test": task})])
    results = evaluate_suite(FakeEncoder(), data, measures=("sts", "retrieval"))
    (tmp_path / "record").mkdir()
    write_record(tmp_path / "record", "my model", results, model={"kind": "backbone"}, environment={"python": "3"})
    return tmp_path / "record", results


def test_a_record_comes_back(written):
    folder, results = written
    record = read_record(folder)
    assert (record.name, record.model, record.environment) == ("my model", {"kind": "backbone"}, {"python": "3"})
    assert record.scores["sts"]["STS-B"]["all"] == pytest.approx(results.sts.tasks["STS-B"].values["all"], abs=1e-4)
    curves, expected = record.table("density.csv"), [value for curve in results.densities for value in curve.density]
    np.testing.assert_allclose([float(row["density"]) for row in curves], expected, atol=1e-4)
    ranks = {(row["query"], row["partner"]): int(row["rank"]) for row in record.table("retrieval.csv")}
    assert ranks == {(example.query, example.partner): example.rank for example in results.retrieval.examples}


def test_whatever_is_changed_in_a_record_is_noticed_in_one_line(written, tmp_path):
    """``cse report`` and ``cse compare`` read every one of these files."""
    folder, _ = written
    said = refusal(read_record, tmp_path)
    assert "no record.json in it; create one with `cse evaluate MODEL --out FOLDER`" in said
    text = (folder / RECORD_FILE).read_text(encoding="utf-8")
    tree = json.loads(text)
    write_sealed(folder / RECORD_FILE, tree | {"format": 99})
    assert "format 99, this version reads 5" in refusal(read_record, folder)
    for damaged in ("", text[:-20], "[]", "[" * 100_000, json.dumps(tree | {"name": "other"})):
        (folder / RECORD_FILE).write_text(damaged, encoding="utf-8")
        assert RECORD_FILE in refusal(read_record, folder)
    (folder / RECORD_FILE).write_text(text, encoding="utf-8")
    others = sorted(path for path in folder.iterdir() if path.name != RECORD_FILE)
    assert {path.suffix for path in others} == {".csv", ".npz"}
    for path in others:
        content = path.read_bytes()
        for other in (None, content[:-2] + b"\xff\n"):
            path.unlink() if other is None else path.write_bytes(other)
            assert path.name in refusal(read_record, folder)
        path.write_bytes(content)
    assert read_record(folder).name == "my model"
