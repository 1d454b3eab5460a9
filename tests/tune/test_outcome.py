"""What a sweep leaves: the CSV, the page and its pictures, read back."""

from __future__ import annotations

import csv
import json
import re

import pytest

from cse.errors import CseError
from cse.settings.spaces import Dimension
from cse.tune.outcome import PAGE, TRIALS, Sweep, TrialRecord, describe, read_sweep, write_sweep, write_trials
from cse.tune.page import study_of, write_page

RATE = Dimension("train.learning_rate", low=1e-3, high=1e-1, log=True)
LENGTH = Dimension("prompt.length", values=(4, 8, 12))


def record(number, rate, length, score, state="finished", reason=""):
    config = {"train.learning_rate": rate, "prompt.length": length}
    curve = [] if score is None else [(50, score - 1.0), (100, score)] if state == "finished" else [(50, score)]
    percent = {"finished": 100, "stopped": 50, "failed": 0}[state]
    values = config | {"train.eval_every": 7}
    return TrialRecord(number, state, config, values, score, percent, 3.25, curve, reason, f"/sweep/{number}")


@pytest.fixture
def sweep(tmp_path):
    return Sweep(
        tmp_path,
        "own",
        "optuna",
        (RATE, LENGTH),
        (
            record(1, 0.01, 4, 80.25),
            record(2, 0.02, 8, 82.5),
            record(3, 0.1, 8, 61.0, "stopped"),
            record(4, 0.05, 12, None, "failed", "train.learning_rate: the loss is nan <at step 5>"),
            record(5, 0.03, 12, 82.5),
            record(6, 0.005, 12, 79.0),
        ),
    )


def test_the_best_has_finished_and_came_first(sweep):
    assert sweep.best.number == 2
    stopped = record(7, 0.04, 4, 99.0, "stopped")
    assert Sweep(sweep.folder, "own", "optuna", sweep.dimensions, (*sweep.trials, stopped)).best.number == 2


def test_nothing_that_ended_well(sweep):
    failed = Sweep(sweep.folder, "own", "optuna", sweep.dimensions, (sweep.trials[3],))
    with pytest.raises(CseError, match=r"no trial ended well \(train.learning_rate: the loss is nan"):
        _ = failed.best


def test_a_sweep_is_read_as_it_was_written(sweep):
    assert read_sweep(sweep.folder) is None
    write_trials(sweep)
    write_sweep(sweep)
    assert read_sweep(sweep.folder) == sweep
    with (sweep.folder / TRIALS).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["dev_spearman"] for row in rows] == ["80.25", "82.5", "61.0", "", "82.5", "79.0"]
    assert rows[3]["reason"] == "train.learning_rate: the loss is nan <at step 5>"
    assert {row["state"] for row in rows} == {"finished", "stopped", "failed"}


def test_the_table_has_the_best_first(sweep):
    lines = describe(sweep).splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["2", "5", "1", "6", "3", "4"]
    assert lines[-1].startswith("best: trial 2, dev 82.50 with train.learning_rate 0.02")


def test_the_study_has_the_trials_with_a_score(sweep):
    study = study_of(sweep)
    assert [(trial.state.name, trial.value) for trial in study.trials] == [
        ("COMPLETE", 80.25), ("COMPLETE", 82.5), ("PRUNED", 61.0), ("COMPLETE", 82.5), ("COMPLETE", 79.0),
    ]  # fmt: skip
    assert study.best_params == {"train.learning_rate": 0.02, "prompt.length": 8}


def test_the_page_needs_nothing_beside_it(sweep):
    write_page(sweep)
    page = (sweep.folder / PAGE).read_text(encoding="utf-8")
    own = page.partition("</script>")[2]  # behind plotly's own code
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", own)
    figures = re.findall(r'Plotly\.newPlot\(\s*"[^"]+",\s*(\[.*?\]),\s*\{', own, flags=re.S)
    kinds = [trace["type"] for figure in figures for trace in json.loads(figure)]
    assert kinds[0] == "parcoords" and "bar" in kinds  # importance
    assert kinds.count("scatter") == 5 + 2  # a curve for each trial with a score; markers and best so far
    parallel = json.loads(figures[0])[0]
    assert [axis["label"] for axis in parallel["dimensions"]] == ["train.learning_rate (log)", "prompt.length", "dev"]
    assert parallel["dimensions"][2]["values"] == [80.25, 82.5, 61.0, 82.5, 79.0]
    assert "the loss is nan &lt;at step 5&gt;" in own
    assert "train.eval_every: 7" in own


def test_a_page_of_too_few_trials_says_what_is_missing(sweep):
    write_page(Sweep(sweep.folder, "own", "grid", sweep.dimensions, sweep.trials[:2]))
    page = (sweep.folder / PAGE).read_text(encoding="utf-8")
    assert "Not with these trials: it takes three finished trials with different scores." in page
