"""What ``prepare`` makes of a user's own tasks: files, counts, and which texts are held out of the training rows."""

from __future__ import annotations

import pytest

from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.data.suite import open_suite
from cse.data.tasks.kinds import kind_of
from cse.data.tasks.store import OWN, TASKS_FILE, open_dev, open_tasks
from cse.errors import CseError
from cse.settings.data import DataSettings
from cse.stages.prepare import counts, summary
from tests.data.tasks.files import write_beir, write_labelled
from tests.rows import write_lines

ROWS = [
    "birds that wait",  # a query
    "A pump moves water.",  # a document
    "card lost",  # a test row
    "where is my card",  # a reference row
    "a sentence of its own",
    "and another",
]


@pytest.fixture
def raw(tmp_path):
    for name in ("dev", "evaluation", "cxc", "task"):
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "README.md", ["put data here"])
    write_lines(tmp_path / "train.csv", ["text", *ROWS])
    return tmp_path


def settings(raw, **how):
    paths = {f"{name}_path": str(raw / name) for name in ("dev", "evaluation", "cxc", "task")}
    return DataSettings(source="files", view="sentences", train_path=str(raw / "train.csv"), **{**paths, **how})


def test_tasks_are_stored_counted_and_held_out(raw):
    write_beir(raw / "task/birds")
    write_labelled(raw / "task/bank")
    report = prepare(settings(raw), raw / "out")
    data = PreparedData(raw / "out")
    assert [task.name for task in open_tasks(data, OWN)] == ["bank", "birds"]
    assert [task.name for task in open_suite(data).own] == ["bank", "birds"]
    assert data.train["sent0"].to_pylist() == [ROWS[1], *ROWS[3:]], "documents and reference rows are training text"
    assert report["train"]["dropped"]["evaluation_overlap"] == {"count": 2, "first": "train.csv:2"}
    assert report["tasks"]["birds"] == {
        "kind": "retrieval",
        "description": "retrieval: 2 queries, 3 documents, 3 judgements in qrels/test.tsv",
        "items": 2,
        "texts": 5,
    }
    assert counts(report)["own_tasks"] == 2
    assert "task        bank: labelled texts: 2 labels, 4 reference and 3 test rows" in summary(report)
    assert not any("no evaluation tasks" in note for note in report["notes"])
    prepare(settings(raw), raw / "again")
    for name in (TASKS_FILE, "report.json"):
        assert (raw / "out" / name).read_bytes() == (raw / "again" / name).read_bytes()
    assert prepare(settings(raw, drop=["duplicates"]), raw / "out")["train"]["evaluation_overlap_kept"] == 2


def test_a_single_task_at_the_path_itself(raw):
    write_beir(raw / "birds")
    prepare(settings(raw, task_path=str(raw / "birds")), raw / "out")
    assert [task.name for task in open_tasks(PreparedData(raw / "out"), OWN)] == ["birds"]
    with pytest.raises(CseError, match=r"bird: no such file or folder; did you mean 'birds'\? \(or change data.task_"):
        prepare(settings(raw, task_path=str(raw / "bird")), raw / "out")


def test_any_task_selects_checkpoints(raw):
    write_labelled(raw / "dev")
    report = prepare(settings(raw), raw / "out")
    data = PreparedData(raw / "out")
    assert open_dev(data).test == ["card lost", "rate today", "rate of exchange"]
    assert open_dev(data).test_label == ["card", "rate", "rate"]
    assert (report["dev"]["pairs"], report["dev"]["task"]["items"]) == (0, 3)
    assert "dev         labelled texts: 2 labels, 4 reference and 3 test rows from dev" in summary(report)
    assert not any("no dev pairs" in note for note in report["notes"])
    assert report["train"]["dropped"]["evaluation_overlap"]["count"] == 1, "the test row, not the reference row"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["sentence1,sentence2,score", "a,b,1", "c,d,2"], None),
        (["sentence1,sentence2,score,label", "a,b,1,1", "c,d,2,0"], None),
        (["sentence1,sentence2,label", "a,b,1.5", "c,d,2"], None),
        (["sentence1,sentence2,label", "a,b,1", "c,d,0"], "binary pairs"),
        (["anchor,positive,negative", "a,b,c", "d,e,f"], "triplets"),
    ],
)
def test_a_dev_file_with_a_score_is_read_as_ever(raw, lines, kind):
    write_lines(raw / "dev/own.csv", lines)
    report = prepare(settings(raw), raw / "out")
    assert kind_of(open_dev(PreparedData(raw / "out"))) == (kind or "scored pairs")
    assert report["dev"].get("task", {}).get("kind") == kind
    assert report["dev"]["pairs"] == (0 if kind else 2)
