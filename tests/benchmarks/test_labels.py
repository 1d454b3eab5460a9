"""The benchmark of few labelled rows: what it draws, how it judges, and the table."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.labels import BARE, OURS, LabelledRows, _table, judged, parse
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

    assert judged(right, train, test) == {"accuracy": 100.0, "class mean": 100.0, "MAP": 100.0}
    found = judged(wrong, train, test)
    assert found["accuracy"] == found["class mean"] == pytest.approx(100 * 5 / 6)
    assert found["MAP"] < 100


def test_the_table_compares_with_the_better_classifier_of_a_peer():
    def draws(*scores, **more):
        return [{"accuracy": s, "class mean": 1.0, "MAP": 2.0, **more, "seconds": 3.0} for s in scores]

    found = {"5": {BARE: draws(78.0, 80.0), OURS: draws(81.0, 82.0), "SetFit": draws(70.0, 70.0)}}
    for draw, own in zip(found["5"]["SetFit"], (79.0, 80.0), strict=True):
        draw["its own classifier"] = own
    table = _table(found)
    assert "| 5, the bare backbone |    79.00 |" in table
    assert "+2.50 (-3.85 to +8.85)" in table, "3 and 2 points ahead: 2.5 +- 12.71 * 0.5"
    assert "+2.00 (+2.00 to +2.00)" in table, "2 and 2 ahead of SetFit's own classifier"


def test_a_budget_is_a_time():
    assert parse(["folder", "--budget", "5m"]).budget == 300
