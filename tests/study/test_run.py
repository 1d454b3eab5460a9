"""One training of a study in this process: what it trains on, and when it counts as done."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import cse.study.run
from cse.bench.ledger import Ledger
from cse.bench.worker import RunWorker
from cse.data.clean import overlap_key
from cse.data.store import PreparedData
from cse.data.tasks.parts import dev_part
from cse.data.tasks.store import OWN, open_tasks
from cse.errors import CseError
from cse.settings.load import load_settings
from cse.study.facts import facts_of
from cse.study.plan import BARE, read_study, runs_of
from cse.study.run import Folders, RoundRuns, prepare_once
from cse.study.table import RunRow, table
from tests.study.workspace import write_study

ROWS = Path("data/raw/train/rows.csv")


@pytest.fixture
def plan(tiny_folders, tmp_path, monkeypatch):
    file = write_study(tmp_path, tiny_folders["bert"])
    monkeypatch.chdir(tmp_path)
    return read_study(file)


def run_of(plan, **values):
    base = load_settings(Path("params.yaml"))
    return runs_of(plan.model_copy(update={"set": plan.set | values}), "screen", base, ["plain"])[0]


def test_no_text_of_a_dev_part_is_trained_on(plan):
    """The training rows are the task's own texts, in another case and with a mark."""
    with Path("data/raw/task/labels/train.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    with Path("intents.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *((row["text"].upper() + "!", row["label"]) for row in rows)])
    values = {"data.train_path": "intents.csv", "data.view": "categories", "data.drop": ["evaluation_overlap"]}
    run = run_of(plan, **values, **{"objective.energy_hinge.weight": 0.0})
    data = PreparedData(prepare_once(Folders(Path("out"), Path("cxc")), run.settings).prepared)
    (labels,) = (task for task in open_tasks(data, OWN) if task.name == "labels")
    dev = {overlap_key(text) for text in dev_part(labels).test}
    trained = {overlap_key(text) for text in data.train["sent0"].to_pylist()}
    assert len(dev) >= 6
    assert trained < {overlap_key(row["text"]) for row in rows}
    assert data.report["train"]["dropped"]["evaluation_overlap"]["count"] == len(dev)
    assert trained.isdisjoint(dev)


def test_a_checkpoint_of_other_rows_is_not_measured_after_a_failure(plan, monkeypatch, capsys):
    run, place = run_of(plan), Folders(Path("out"), Path("cxc"))
    folder, measure = place.run("screen", run.name).folder, cse.study.run.evaluate_suite
    ledger = Ledger(place.run("screen", run.name).folder)

    def fails(*args, **more):
        raise CseError("no space left")

    def do(evaluate):
        monkeypatch.setattr(cse.study.run, "evaluate_suite", evaluate)
        ledger.forget("run")
        return RunWorker(RoundRuns(place, "screen", plan.rounds["screen"], {run.name: run}).do, 1).run(run.name)

    def trained():
        return (folder / "checkpoint/checkpoint.json").stat().st_mtime_ns

    assert do(fails) == "no space left"
    first = trained()
    assert do(measure) == ""
    assert trained() == first, "the same rows: only measured"

    assert do(fails) == "no space left"
    with ROWS.open(encoding="utf-8") as stream:
        rows = stream.read().splitlines()
    ROWS.write_text("\n".join([rows[0], *rows[40:]]) + "\n", encoding="utf-8")
    assert do(measure) == ""
    assert trained() != first, "the record names the new file, so its scores are of a training on it"
    assert ledger.read("run").of == facts_of(run, "screen", place.captions)


def test_a_round_takes_over_what_another_one_trained_alike(plan):
    place, trained = Folders(Path("out"), Path("cxc")), []

    def do(round_name, run):
        worker = RunWorker(RoundRuns(place, round_name, plan.rounds["screen"], {run.name: run}).do, 1)
        assert worker.run(run.name) == ""
        folder = place.run(round_name, run.name).folder
        trained.append((folder / "checkpoint/checkpoint.json").stat().st_mtime_ns)
        return Ledger(folder).read("run")

    run = run_of(plan)
    screened, whole = do("screen", run), do("whole", run)
    assert whole.result == screened.result and trained[1] == trained[0]
    assert whole.of == facts_of(run, "whole", place.captions)
    assert do("whole", run) == whole
    other = run_of(plan, **{"train.learning_rate": 0.3})
    assert do("path", other).result != screened.result, "another rate under the same name is trained"


@pytest.mark.parametrize(
    "values", [{"data.dev": "own"}, {"data.score_range": [0, 1]}, {"data.hold_out": 0.2}, {"data.dev_path": "x"}]
)
def test_a_score_of_the_bare_backbone_is_of_what_the_settings_measure(plan, values):
    def facts(**values):
        return facts_of(replace(run_of(plan, **values), setting=BARE), "screen", Path("cxc"))

    assert facts() == facts(**{"data.max_rows": 7}) != facts(**values)
    before = facts(), facts(**{"data.hold_out": 0.2})
    ROWS.write_bytes(ROWS.read_bytes() + b"a,b,c\n")
    assert [facts() == before[0], facts(**{"data.hold_out": 0.2}) == before[1]] == [True, False]


def test_the_bare_backbone_reads_texts_as_the_settings_say(plan, monkeypatch):
    run, place = (
        run_of(plan, **{"backbone.texts": {"query": "find: "}, "backbone.max_length": 20}),
        Folders(Path("out"), Path("cxc")),
    )
    measure, read = cse.study.run.evaluate_suite, []

    def evaluate(encoder, *args, **more):
        read.append((encoder.max_length, encoder.texts))
        return measure(encoder, *args, **more)

    monkeypatch.setattr(cse.study.run, "evaluate_suite", evaluate)
    bare = replace(run, setting=BARE)
    worker = RunWorker(RoundRuns(place, "screen", plan.rounds["screen"], {BARE: bare, run.name: run}).do, 1)
    assert [worker.run(name) for name in (BARE, run.name)] == ["", ""]
    assert read == [(20, {"query": "find: "})] * 2
    without, row = (RunRow.of(Ledger(place.run("screen", name).folder).read("run")) for name in (BARE, run.name))
    head, _, line = table([without, row])
    assert line[head.index("gained")]
    for own in (
        {"backbone.texts.query": "ask: "},
        {"backbone.texts.document": "text: "},
        {"the backbone's files": "0f"},
    ):
        head, _, line = table([without, replace(row, settings=row.settings | own)])
        assert not line[head.index("gained")], "another task text or other weights: its gain is not the training's"
