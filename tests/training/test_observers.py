"""What a run writes down, and what it shows: the start has a row of its own, once, however often the run is started."""

from __future__ import annotations

import csv
import io
import time

from cse.training.observers import CsvLog, ProgressBar, StepRecord


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
