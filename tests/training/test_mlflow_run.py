"""A training as a run of MLflow: one run however often it is killed, and a server that goes away stops nothing."""

from __future__ import annotations

import signal

import pytest

from cse.errors import CseError, Interrupted
from cse.training.observers import MlflowRun, StepRecord

SETTINGS = {"prompt": {"length": 12, "dropout": None}, "train": {"learning_rate": 0.01}}


@pytest.fixture(scope="module")
def mlflow():
    return pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/runs.db"


@pytest.fixture
def client(mlflow, store, monkeypatch, request):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    return mlflow.MlflowClient(store)


def record(step):
    return StepRecord(step, 10, {"nt_xent": 2.0 / step, "loss": 3.0 / step}, 0.01, 100.0, 900.0, None)


def runs(client, name):
    return client.search_runs([client.get_experiment_by_name(name).experiment_id])


def test_a_run_holds_settings_terms_and_dev_scores(client, tmp_path, request):
    run = MlflowRun(tmp_path, SETTINGS)
    run.start(0, 10)
    run.evaluated(0, 80.0, True)
    run.step(record(5))
    run.step(record(10))
    run.evaluated(10, 79.5, False)
    run.close()
    (kept,) = runs(client, request.node.name)
    assert kept.info.status == "FINISHED"
    assert kept.data.params == {"prompt.length": "12", "prompt.dropout": "None", "train.learning_rate": "0.01"}
    assert kept.data.metrics["loss/nt_xent"] == 0.2
    losses = client.get_metric_history(kept.info.run_id, "loss/loss")
    assert [(metric.step, metric.value) for metric in losses] == [(5, 0.6), (10, 0.3)]
    assert kept.data.metrics["dev/spearman"] == 79.5
    assert kept.data.metrics["dev/best"] == 80.0


def test_a_killed_training_goes_on_in_its_run(client, tmp_path, request):
    first = MlflowRun(tmp_path, SETTINGS)
    first.start(0, 10)
    first.step(record(5))
    with pytest.raises(Interrupted):
        try:
            raise Interrupted(signal.SIGTERM, "after step 5 of 10")
        finally:
            first.close()
    assert [run.info.status for run in runs(client, request.node.name)] == ["KILLED"]
    second = MlflowRun(tmp_path, SETTINGS)
    second.start(5, 10)
    second.step(record(10))
    second.close()
    (kept,) = runs(client, request.node.name)
    assert kept.info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(kept.info.run_id, "learning_rate")] == [5, 10]


def test_a_server_that_is_away_at_the_start_is_one_line(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(CseError, match=r"^CSE_OBSERVERS: mlflow: .*check MLFLOW_TRACKING_URI$"):
        MlflowRun(tmp_path, SETTINGS).start(0, 10)
