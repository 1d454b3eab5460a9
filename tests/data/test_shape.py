"""What columns and labels mean, for rows to train on and for tasks alike."""

import math

import pytest

from cse.data.shape import Row, read_rows
from cse.data.tasks.kinds import ScoredPairs
from cse.data.tasks.read import read_task
from tests.data.conftest import dropped
from tests.parts import refusal
from tests.rows import write_table

SHORT = {"": "+", "labelled_negative": "-", "labelled_neutral": "o", "no_label": "?", "low_score": "<"}
LABEL, GOLD, SCORE = (("sentence1", "sentence2", name) for name in ("label", "gold_label", "score"))
PREMISE = ("premise", "hypothesis", "label")
READ = [
    (LABEL, ["0", "1", "0.0", "1.0"], "-+-+"),
    (LABEL, ["true", "False", "TRUE"], "+-+"),
    (LABEL, ["+1", "00", "1e0", "0,0"], "+-+-"),
    (LABEL, ["duplicate", "not_duplicate", "Not Duplicate", "non-duplicate"], "+---"),
    (LABEL, ["1", "0", "", "-1"], "+-??"),
    (LABEL, ["entailment", "neutral", "contradiction", "-"], "+o-?"),
    (LABEL, ["e", "n", "c", "E"], "+o-+"),
    (LABEL, ["0", "2.5", "4", "5"], "<<++"),
    (LABEL, ["0", "0.5", "0,79", "0.8", "1"], "<<<++"),
    (GOLD, ["0", "1", "2", "-1"], "+o-?"),
    (PREMISE, ["0", "1", "2", "-1"], "+o-?"),
    (SCORE, ["0", "1", "2", "4"], "<<<+"),
    (("query", "document", "score"), ["0", "1"], "-+"),
]


def pairs(folder, labels, names=LABEL, name="a.csv"):
    return write_table(folder / name, names, [(f"one {n}", f"two {n}", label) for n, label in enumerate(labels)])


def faults(path, **how):
    return "".join(SHORT[row.fault] for row in read_rows(path, "pairs", **how))


@pytest.mark.parametrize(("names", "labels", "expected"), READ)
def test_pairs_that_do_not_belong_together_are_no_positives(tmp_path, names, labels, expected):
    assert faults(pairs(tmp_path, labels, names)) == expected
    swapped = [(label, f"two {n}", n, f"one {n}") for n, label in enumerate(labels)]
    other = write_table(tmp_path / "b.csv", (names[2], names[1], "idx", names[0]), swapped)
    assert [*read_rows(other, "pairs")] == [*read_rows(tmp_path / "a.csv", "pairs")]
    if "<" in expected:
        assert isinstance(read_task(tmp_path / "a.csv"), ScoredPairs)
    elif {*"+-"} <= {*expected}:
        task = read_task(tmp_path / "a.csv")
        assert task.label.tolist() == [mark == "+" for mark in expected if mark in "+-"]
        assert task.left_out == len(expected) - len(task.label)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_labels_that_are_numbers_and_truth_values(tmp_path, name):
    for labels, expected in (
        ([0, 1], "-+"), ([0.0, 1.0, None], "-+?"), ([True, False], "+-"), ([1.5, 4.5], "<+"), ([1.0, math.nan], "+?"),
    ):  # fmt: skip
        assert faults(pairs(tmp_path, labels, name=name)) == expected


def test_columns_that_are_named_say_what_they_are_and_others_are_told(tmp_path):
    path = write_table(tmp_path / "a.csv", ("x", "y", "same", "n"), [("a", "b", "1", 7), ("c", "d", "0", 7)])
    assert faults(path, columns=["x", "y", "same"]) == "+-"
    assert faults(path, columns=["x", "y"]) == "++"
    path, notes = pairs(tmp_path, ["0", "50", "90"], SCORE), []
    assert faults(path, score_range=(0, 100), tell=notes.append) == "<<+"
    path = pairs(tmp_path, ["by mail", "1"], ("sentence1", "sentence2", "source"))
    assert faults(path, tell=notes.append) == "++"
    path = write_table(tmp_path / "b.csv", ("sent0", "sent1", "hard_neg"), [("a", "b", "c")])
    assert faults(path, tell=notes.append) == "+"
    scores = "scores from 0 to 100: pairs of 80 or more are positives, the others are left out"
    assert notes == [scores, "every pair belongs together; not read: source", ""]
    for name, values in (("agree", ["0", "1"]), ("my_score", ["0.3", "12"]), ("verdict", ["yes", "no"])):
        path = pairs(tmp_path, values, ("anchor", "positive", name))
        assert f"a.csv: column {name!r} may say which pairs belong together; if so, set" in refusal(faults, path)


def test_negatives_stand_beside_the_positives_of_their_text(tmp_path):
    rows = [("a", "a1", 1), ("a", "a2", 0), ("b", "b1", 1), ("a", "a3", 1), ("c", "c1", 0), ("a", "a4", "")]
    path = write_table(tmp_path / "a.csv", ("sentence1", "sentence2", "label"), rows)
    found = list(read_rows(path, "triplets"))
    assert [row.texts for row in found if all(row.texts) and not row.fault] == [("a", "a1", "a2"), ("a", "a3", "a2")]
    assert [(row.texts, row.fault) for row in found if not all(row.texts)] == [
        (("a", "a4", None), "no_label"), (("b", "b1", None), ""), (("c", "c1", None), "labelled_negative"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_several_positives_and_negatives_in_a_row(tmp_path, name):
    for row, expected in (
        ({"query": "q", "pos": ["a"], "neg": ["x", "y"]}, ["qax", "qay"]),
        ({"query": "q", "pos": ["a", "b"], "neg": ["x"]}, ["qax", "qbx"]),
        ({"query": "q", "pos": ["a"], "neg": []}, ["qa"]),
        ({"anchor": "q", "positive": "a", "negative_1": "x", "negative_2": "y"}, ["qax", "qay"]),
        ({"anchor": "q", "positive": "a", "negative": ["x", ""]}, ["qax"]),
    ):
        path = write_table(tmp_path / name, [*row], [[*row.values()]])
        assert ["".join(filter(None, found.texts)) for found in read_rows(path, "triplets")] == expected
        assert {"".join(found.texts) for found in read_rows(path, "pairs")} == {texts[:2] for texts in expected}


def test_what_is_left_out_is_counted_and_said(prepared, tmp_path):
    data = prepared(pairs(tmp_path, ["5", "0", "4", "", "4.5"], SCORE), view="pairs")
    assert data.train["sent0"].to_pylist() == ["one 0", "one 2", "one 4"]
    assert dropped(data.report["train"]) == {"low_score": (1, "a.csv:3"), "no_label": (1, "a.csv:5")}
    assert any(note.startswith("a.csv: scores from 0 to 5: pairs of 4 or more") for note in data.report["notes"])
    said = refusal(prepared, pairs(tmp_path, ["0", "0"]), view="pairs")
    assert "all 2 rows were dropped: 2 labelled_negative" in said and "; give pairs labelled 1" in said


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_categories_may_be_numbers(tmp_path, name):
    for values in ([1.0, 2.0, None], [1, 2, None], ["1", "2", ""]):
        path = write_table(tmp_path / name, ("text", "label"), [(f"t {n}", value) for n, value in enumerate(values)])
        assert [row.label for row in read_rows(path, "categories")] == ["1", "2", None]
        task = write_table(tmp_path / name, ("text", "label"), [(f"t {n}", values[n % 2]) for n in range(8)])
        assert set(read_task(task).test_label) == {"1", "2"}
    truths = write_table(tmp_path / "b.jsonl", ("text", "label"), [("a", True), ("b", "False")])
    assert list(read_rows(truths, "categories")) == [Row(1, ("a",), "true"), Row(2, ("b",), "false")]
