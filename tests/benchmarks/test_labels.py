"""The benchmark of few labelled rows: what it draws, how it judges, and the table."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmarks import labels as benchmark
from benchmarks.labels import BARE, MEASURES, OURS, OWN, LabelledRows, _table, judged, measure, parse
from cse.adapt.look import look


def rows(counts: dict[str, int]) -> LabelledRows:
    names = sorted(counts)
    texts = [f"{name} {number}" for name in names for number in range(counts[name])]
    return LabelledRows(texts, np.repeat(np.arange(len(names)), [counts[name] for name in names]), names)


def test_as_many_rows_of_each_label_are_drawn_and_all_of_a_rare_one(tmp_path):
    everything = rows({"a": 9, "b": 3, "c": 7})
    drawn = everything.drawn(5, seed=1)
    assert np.bincount(drawn.label).tolist() == [5, 3, 5]
    assert set(drawn.texts) < set(everything.texts)
    assert drawn.texts == everything.drawn(5, seed=1).texts != everything.drawn(5, seed=2).texts
    drawn.write(tmp_path / "few.csv")
    read = LabelledRows.read(tmp_path / "few.csv")
    assert (read.texts, read.names, read.label.tolist()) == (drawn.texts, drawn.names, drawn.label.tolist())
    assert look([], labels=tmp_path / "few.csv").view == "categories", "`cse adapt` reads it"


def test_vectors_are_judged_by_their_labels_alone():
    train, test = rows({"a": 3, "b": 3}), rows({"a": 4, "b": 2})
    axes = {"a": [1.0, 0.0], "b": [0.0, 1.0]}

    def right(texts):
        return np.array([axes[text[0]] for text in texts])

    def wrong(texts):
        return np.array([axes["b"] if text == "a 3" else axes[text[0]] for text in texts])

    assert judged(right, train, test) == dict.fromkeys(("accuracy", "class mean", "MAP"), [1.0] * 6)
    found = judged(wrong, train, test)
    assert found["accuracy"] == found["class mean"] == [1, 1, 1, 0, 1, 1]
    assert np.mean(found["MAP"]) < 1


def test_the_table_compares_with_the_better_classifier_of_a_peer():
    def draws(*right, own=None):
        """Of ten test rows so many are right, the first ones."""
        rows = [{"accuracy": (np.arange(10) < n) * 1.0, "class mean": np.ones(10), "MAP": np.ones(10)} for n in right]
        for row, n in zip(rows, own or (), strict=False):
            row[OWN] = (np.arange(10) < n) * 1.0
        return [row | {"seconds": 3.0} for row in rows]

    ours = draws(8, 9)
    table = _table({"5": {BARE: draws(7, 6), OURS: ours, "SetFit": draws(3, 3, own=(8, 9))}})
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [line[:2] for line in lines] == [
        ["5, the bare backbone", "65.00"], ["5, cse adapt", "85.00"], ["5, SetFit", "30.00"],
    ]  # fmt: skip
    before, same = (re.fullmatch(r"(\S+) \((\S+) to (\S+); p (\S+)\)", lines[place][-1]) for place in (0, 2))
    assert same.groups() == ("+0.00", "+0.00", "+0.00", "1.000"), "level with SetFit's own classifier, row by row"
    assert before[1] == "+20.00"
    # two draws 10 and 30 points ahead: the interval of the draws alone is 20 +- 12.71 * 10, that of the rows is added
    assert float(before[2]) < 20 - 127.0 and float(before[4]) > 0.05


def test_what_has_ended_is_not_measured_again(tmp_path, monkeypatch):
    everything = rows({"a": 6, "b": 6})
    for part in ("train", "test"):
        everything.write(tmp_path / f"{part}.csv")
    called = []

    def work(name, *, breaks=False):
        def measured(*_):
            called.append(name)
            if breaks:
                raise KeyboardInterrupt
            return {measure: [1.0] * 12 for measure in MEASURES}

        return measured

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "of_bare", work("bare"))
    monkeypatch.setattr(benchmark, "of_adapt", work("adapt", breaks=True))
    options = parse([str(tmp_path), "--rows", "5", "--draws", "1", "--setfit"])
    with pytest.raises(KeyboardInterrupt):
        measure(options)
    monkeypatch.setattr(benchmark, "of_adapt", work("adapt"))
    assert "+0.00" in measure(options)["table"]
    assert called == ["bare", "adapt", "adapt"]


def test_a_budget_is_a_time():
    assert parse(["folder", "--budget", "5m"]).budget == 300
