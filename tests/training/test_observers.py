"""What a run writes down, and what workers tell observers of the command: once, however often a run is started."""

import csv
import errno
import re
import signal
from contextlib import closing
from unittest.mock import Mock

import pytest

from cse.errors import CseError, Interrupted
from cse.losses.group import PeerLost
from cse.training.observers import CsvLog, MlflowRun, StepRecord
from cse.training.workers import GROUP, LOST, Relay, followed, in_line, told
from tests.parts import refusal
from tests.training.helpers import Recorder


def test_a_run_that_is_started_again_logs_its_start_once_and_drops_what_is_made_again(tmp_path):
    for done, scored, kept in ((0, (0, 5), [0, 5]), (0, (0, 3, 6, 9), [0, 3, 6, 9]), (7, (), [0, 3, 6])):
        log = CsvLog(tmp_path)
        log.start(done, 10)
        for step in scored:
            log.evaluated(step, 40.0 + step, True)
        with (tmp_path / "dev.csv").open(encoding="utf-8", newline="") as stream:
            assert [int(row["step"]) for row in csv.DictReader(stream)] == kept


SETTINGS = {"prompt": {"length": 12, "dropout": None}, "train": {"learning_rate": 0.01}}


def test_a_killed_training_goes_on_in_its_run_of_mlflow(tmp_path, monkeypatch):
    store = f"sqlite:///{tmp_path}/runs.db"
    client = pytest.importorskip("mlflow").MlflowClient(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")

    def only_run():
        (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
        return found

    first, second = MlflowRun(tmp_path, SETTINGS), MlflowRun(tmp_path, SETTINGS)
    first.start(0, 10)
    first.evaluated(0, 80.0, True)
    first.step(StepRecord(5, 10, {"loss": 0.6}, 0.01, 100.0, 900.0, None))
    with pytest.raises(Interrupted), closing(first):
        raise Interrupted(signal.SIGTERM, "after step 5 of 10")
    assert only_run().info.status == "KILLED"
    with closing(second):
        second.start(5, 10)
        second.step(StepRecord(10, 10, {"loss": 0.3}, 0.01, 100.0, 900.0, None))
        second.evaluated(10, 79.5, False)
    kept = only_run()
    assert kept.info.status == "FINISHED"
    assert kept.data.params == {"prompt.length": "12", "prompt.dropout": "None", "train.learning_rate": "0.01"}
    losses = client.get_metric_history(kept.info.run_id, "loss/loss")
    assert [(metric.step, metric.value) for metric in losses] == [(5, 0.6), (10, 0.3)]
    assert (kept.data.metrics["dev/spearman"], kept.data.metrics["dev/best"]) == (79.5, 80.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    said = refusal(MlflowRun(tmp_path / "away", SETTINGS).start, 0, 10)
    assert re.match(r"CSE_OBSERVERS: mlflow: .*check MLFLOW_TRACKING_URI$", said)


def test_each_attempt_has_observers_of_its_own_and_they_are_closed(capsys):
    relay, made = Relay(), []

    def observers():
        made.append(Recorder())
        return made[-1]

    with pytest.raises(CseError), followed(relay.take, relay.fail, observers, lambda: "waits"):
        for event in ((GROUP, "two"), ("start", 0, 9), ("evaluated", 0, 1.5, True), ("evaluated", 3, 2.5, True)):
            assert relay.tell(*event) is None
        for event in ((LOST, "lost"), (GROUP, "one"), ("start", 3, 9), ("evaluated", 6, 3.5, True)):
            relay.tell(*event)
        raise CseError("a worker failed")
    assert [([step for step, *_ in one.scores], one.closed) for one in made] == [([0, 3], 1), ([6], 1)]
    assert capsys.readouterr().err.splitlines() == ["two", "lost", "one"]


def test_workers_stop_when_the_command_cannot_note_what_they_tell():
    full = Mock(**{"evaluated.side_effect": OSError(errno.ENOSPC, "No space left on device", "dev.csv")})
    relay = Relay()
    with followed(relay.take, relay.fail, lambda: full, lambda: "waits"):
        relay.tell("start", 0, 9)
        relay.tell("evaluated", 0, 1.5, True)
    words = relay.tell("evaluated", 3, 2.5, True).words
    assert "dev.csv" in words and "\n" not in words


@pytest.mark.parametrize(("error", "words"), [
    (CseError("train.learning_rate: the loss is nan"), "train.learning_rate: the loss is nan"),
    (OSError(errno.ENOSPC, "No space left on device", "state.pt"), "no space left while writing state.pt"),
    (KeyError("a bug"), "worker 1 failed: KeyError: 'a bug' (trace in "),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_the_first_error_that_is_no_lost_peer_is_told_and_raised(tmp_path, error, words):
    relay = Relay()
    with pytest.raises(PeerLost), told(relay.fail, rank=0):
        raise PeerLost("Connection closed by peer")
    assert relay.failed() is None
    with pytest.raises(type(error)), told(relay.fail, rank=1):
        raise error
    with pytest.raises(CseError), told(relay.fail, rank=0):
        raise CseError("later")
    assert in_line(relay.failed(), tmp_path).startswith(words)
    traces = [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()]
    assert [type(error).__name__ in trace for trace in traces] == ([True] if type(error) is KeyError else [])
