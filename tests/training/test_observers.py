"""What a run writes down, and what it shows: the start has a row of its own, once, however often the run is started."""

from __future__ import annotations

import csv
import signal

import pytest

from cse.errors import CseError, Interrupted
from cse.training.observers import CsvLog, MlflowRun, StepRecord


def test_a_run_that_is_started_again_logs_its_start_once_and_drops_what_is_made_again(tmp_path):
    for done, told, kept in ((0, (0, 5), [0, 5]), (0, (0, 3, 6, 9), [0, 3, 6, 9]), (7, (), [0, 3, 6])):
        log = CsvLog(tmp_path)
        log.start(done, 10)
        for step in told:
            log.evaluated(step, 40.0 + step, True)
        with (tmp_path / "dev.csv").open(encoding="utf-8", newline="") as stream:
            assert [int(row["step"]) for row in csv.DictReader(stream)] == kept


SETTINGS = {"prompt": {"length": 12, "dropout": None}, "train": {"learning_rate": 0.01}}


def record(step):
    return StepRecord(step, 10, {"nt_xent": 2.0 / step, "loss": 3.0 / step}, 0.01, 100.0, 900.0, None)


def test_a_killed_training_goes_on_in_its_run_of_mlflow(tmp_path, monkeypatch):
    store = f"sqlite:///{tmp_path}/runs.db"
    client = pytest.importorskip("mlflow").MlflowClient(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")

    def only_run():
        (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
        return found

    first = MlflowRun(tmp_path, SETTINGS)
    first.start(0, 10)
    first.evaluated(0, 80.0, True)
    first.step(record(5))
    with pytest.raises(Interrupted):
        try:
            raise Interrupted(signal.SIGTERM, "after step 5 of 10")
        finally:
            first.close()
    assert only_run().info.status == "KILLED"
    second = MlflowRun(tmp_path, SETTINGS)
    second.start(5, 10)
    second.step(record(10))
    second.evaluated(10, 79.5, False)
    second.close()
    kept = only_run()
    assert kept.info.status == "FINISHED"
    assert kept.data.params == {"prompt.length": "12", "prompt.dropout": "None", "train.learning_rate": "0.01"}
    losses = client.get_metric_history(kept.info.run_id, "loss/loss")
    assert [(metric.step, metric.value) for metric in losses] == [(5, 0.6), (10, 0.3)]
    assert (kept.data.metrics["dev/spearman"], kept.data.metrics["dev/best"]) == (79.5, 80.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(CseError, match=r"^CSE_OBSERVERS: mlflow: .*check MLFLOW_TRACKING_URI$"):
        MlflowRun(tmp_path / "away", SETTINGS).start(0, 10)
