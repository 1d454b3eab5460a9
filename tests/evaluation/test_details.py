"""Data for figures, D2CSE's example of near-identical sentences, and the record that stores them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cse.artifact import write_sealed
from cse.data.tasks.kinds import Splits
from cse.evaluation.record import RECORD_FILE, read_record, write_record
from cse.evaluation.space import drawn_task
from cse.evaluation.suite import SuiteData, evaluate_suite
from tests.evaluation.test_sts import FakeEncoder, make_task
from tests.parts import refusal


@pytest.fixture
def task():
    return make_task("STS-B", {"captions": 30, "news": 30})


def test_the_drawn_task_is_stsb_where_it_is_there(task):
    own = make_task("own", {"one": 4})
    assert drawn_task([own, task]) is task and drawn_task([own]) is own and drawn_task([]) is None


@pytest.fixture
def written(task, tmp_path):
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
    assert record.drawn_task == "STS-B"
    curves = record.table("density.csv")
    expected = [value for curve in results.densities for value in curve.density]
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
    assert "format 99, this version reads 4" in refusal(read_record, folder)
    wrong = [{**tree, key: value} for key in tree for value in (None, [], {}, "x", 1)]
    wrong += [{key: value for key, value in tree.items() if key != gone} for gone in tree]
    damaged = ["", text[:-20], "[]", "null", "[" * 100_000, '{"x":' * 100_000, *map(json.dumps, wrong)]
    for one in damaged:
        (folder / RECORD_FILE).write_text(one, encoding="utf-8")
        assert RECORD_FILE in refusal(read_record, folder)
    (folder / RECORD_FILE).write_text(text, encoding="utf-8")
    others = sorted(path for path in folder.iterdir() if path.name != RECORD_FILE)
    assert {path.suffix for path in others} == {".csv", ".npz"}
    for path in others:
        content = path.read_bytes()
        for other in (None, b"", content[:-1], content[:-2] + b"\xff\n"):
            path.unlink() if other is None else path.write_bytes(other)
            assert path.name in refusal(read_record, folder)
        path.write_bytes(content)
    assert read_record(folder).name == "my model"
