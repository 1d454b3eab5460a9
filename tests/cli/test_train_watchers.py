"""`CSE_OBSERVERS` adds who watches a training."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_training_is_a_run_of_mlflow(project, cse, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("CSE_OBSERVERS", "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    done = cse("train", "-s", "train.learning_rate=0.003", "--out", "data/again")
    assert done.code == 0, done.err
    client = mlflow.MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("cse").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.learning_rate"] == "0.003"
    assert {"loss/nt_xent", "loss/loss", "dev/spearman", "learning_rate"} <= run.data.metrics.keys()


def test_without_tensorboard_a_line_says_how_to_have_curves(project, cse, monkeypatch):
    before = set(Path(".cse").glob("**/events.out.tfevents.*"))
    monkeypatch.setattr("cse.training.observers.find_spec", lambda name: None)
    done = cse("train", "-s", "train.max_steps=1", "--out", "data/again")
    assert done.code == 0, done.err
    assert "no curves for TensorBoard: pip install 'cse[boards]'\n" in done.err
    assert set(Path(".cse").glob("**/events.out.tfevents.*")) == before


def test_an_unknown_observer_is_refused(project, cse, monkeypatch):
    monkeypatch.setenv("CSE_OBSERVERS", "mlfow")
    done = cse("train", "--out", "data/again")
    assert (done.code, done.err.splitlines()[-1]) == (
        2,
        "error: CSE_OBSERVERS: 'mlfow' is unknown; it may be mlflow; did you mean 'mlflow'?",
    )
