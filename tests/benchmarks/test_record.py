"""What the benchmarks keep of a run, and how they compare contestants."""

import csv
import json

import pytest

from benchmarks.harness import interleave, keep, ratio


def test_history_keeps_earlier_runs(tmp_path):
    run = {"date": "2026-01-01", "commit": "abc", "ratios": {"ours / theirs, fp32": 2.0, "share": 0.5}}
    keep("train", run, tmp_path)
    out = keep("train", run | {"ratios": {"ours / theirs, fp32": 3.0}}, tmp_path)
    assert json.loads(out.read_text())["ratios"] == {"ours / theirs, fp32": 3.0}
    with (tmp_path / "history-train.csv").open(newline="") as stream:
        rows = [(row["run"], row["name"], float(row["ratio"])) for row in csv.DictReader(stream)]
    assert rows == [("1", "ours / theirs, fp32", 2.0), ("1", "share", 0.5), ("2", "ours / theirs, fp32", 3.0)]


def test_rounds_are_interleaved():
    order = []

    def contestant(name):
        def run() -> float:
            order.append(name)
            return float(len(order))

        return run

    found = interleave({name: contestant(name) for name in "ab"}, rounds=3)
    assert "".join(order) == "ababab"
    assert found == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


def test_a_ratio_is_of_neighbours_in_time():
    # a slow second round slows both, and the ratio stays
    found = ratio([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert (found.median, found.least, found.most) == (2.0, 2.0, 3.0)
    assert str(found) == "2.00 (2.00-3.00)"
    with pytest.raises(ValueError):
        ratio([1.0], [1.0, 2.0])
