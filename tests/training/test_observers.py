"""What a run writes down: the start has a row of its own, once, however often the run is started."""

from __future__ import annotations

import csv

from cse.training.observers import CsvLog


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
