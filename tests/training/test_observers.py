"""What a run writes down, and what it shows: the start has a row of its own, once, however often the run is started."""

from __future__ import annotations

import csv
import io
import signal
import time

import pytest

from cse.errors import CseError, Interrupted
from cse.training.observers import CsvLog, MlflowRun, ProgressBar, StepRecord


def steps(folder):
    with (folder / "dev.csv").open(encoding="utf-8", newline="") as stream:
        return [int(row["step"]) for row in csv.DictReader(stream)]


def test_a_run_that_was_killed_before_it_saved_anything_logs_its_start_once(tmp_path):
    for _ in range(2):
        log = CsvLog(tmp_path)
        log.start(0, 10)
        log.evaluated(0, 40.0, True)
        log.evaluated(5, 41.0, True)
    assert steps(tmp_path) == [0, 5]


def test_a_run_that_goes_on_keeps_its_start_and_drops_what_is_made_again(tmp_path):
    log = CsvLog(tmp_path)
    log.start(0, 10)
    for step in (0, 3, 6, 9):
        log.evaluated(step, 40.0 + step, True)
    CsvLog(tmp_path).start(7, 10)
    assert steps(tmp_path) == [0, 3, 6]


def test_the_time_that_the_start_takes_to_score_is_no_time_of_a_step(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    bar = ProgressBar(stream)
    bar.start(0, 30)
    now[0] += 600  # a large backbone on a few cores
    bar.evaluated(0, 40.0, True)
    now[0] += 50
    bar.step(StepRecord(5, 30, {"loss": 1.0}, 1e-2, 100.0, 900.0, 40.0))
    assert stream.getvalue().splitlines()[-1].endswith("| 4:10 left"), "25 steps of 10 seconds"


# ---- MLflow: one run however often it is killed ---------------------------------------------------------------------


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


def test_a_killed_training_goes_on_in_its_run(client, tmp_path, request):
    first = MlflowRun(tmp_path, SETTINGS)
    first.start(0, 10)
    first.evaluated(0, 80.0, True)
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
    second.evaluated(10, 79.5, False)
    second.close()
    (kept,) = runs(client, request.node.name)
    assert kept.info.status == "FINISHED"
    assert kept.data.params == {"prompt.length": "12", "prompt.dropout": "None", "train.learning_rate": "0.01"}
    losses = client.get_metric_history(kept.info.run_id, "loss/loss")
    assert [(metric.step, metric.value) for metric in losses] == [(5, 0.6), (10, 0.3)]
    assert (kept.data.metrics["dev/spearman"], kept.data.metrics["dev/best"]) == (79.5, 80.0)


def test_a_server_that_is_away_at_the_start_is_one_line(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(CseError, match=r"^CSE_OBSERVERS: mlflow: .*check MLFLOW_TRACKING_URI$"):
        MlflowRun(tmp_path, SETTINGS).start(0, 10)
