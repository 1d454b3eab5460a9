"""What ``cse tune --promote`` writes to params.yaml and prints; for whole sweeps see tests/tune."""

from __future__ import annotations

import pytest
from click import unstyle

from cse.settings import load_settings
from cse.tune.outcome import to_promote
from flows.tune import _promote

PARAMS = "data:\n  max_rows: null # all\ntrain:\n  eval_every: 125\n  learning_rate: 0.01\n"


@pytest.fixture
def promote(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS)

    def run(values):
        _promote(*to_promote(values, ("train.learning_rate",)))
        return (tmp_path / "params.yaml").read_text(), unstyle(capsys.readouterr().out)

    return run


def test_the_budget_of_a_small_sweep_stays_out(promote):
    text, said = promote({"data.max_rows": 500, "train.eval_every": 7, "tune.trials": 3, "train.learning_rate": 0.02})
    assert text == PARAMS.replace("0.01", "0.02")
    assert said.splitlines()[:3] == [
        "- train.learning_rate: 0.01", "+ train.learning_rate: 0.02", "params.yaml: 1 values changed",
    ]  # fmt: skip
    assert "data.max_rows 500 (params.yaml: null), train.eval_every 7 (params.yaml: 125)" in said
    assert "`dvc repro` trains again" in said and "tune.trials" not in said


def test_a_training_that_is_there_is_restored(promote):
    _, said = promote({"train.eval_every": 125, "train.learning_rate": 0.02})
    assert said.splitlines()[-1] == "`dvc repro` restores the best trial's training and brings the rest up to date"
    assert "trains again" not in said and load_settings("params.yaml").train.learning_rate == 0.02
