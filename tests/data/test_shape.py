"""What columns and labels mean, for rows to train on and for tasks alike."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cse.data.prepare import prepare
from cse.data.shape import Row, read_rows
from cse.data.store import PreparedData
from cse.data.tasks.kinds import BinaryPairs, ScoredPairs
from cse.data.tasks.read import read_task
from cse.errors import CseError
from cse.settings.data import DataSettings
from tests.rows import write_objects, write_table

SHORT = {"": "+", "labelled_negative": "-", "labelled_neutral": "o", "no_label": "?", "low_score": "<"}


def pairs(folder, labels, names=("sentence1", "sentence2", "label"), name="a.csv"):
    return write_table(folder / name, names, [(f"one {n}", f"two {n}", label) for n, label in enumerate(labels)])


def faults(path, **how):
    return "".join(SHORT[row.fault] for row in read_rows(path, "pairs", **how))


PREMISE, GOLD = ("premise", "hypothesis", "label"), ("sentence1", "sentence2", "gold_label")
SCORE = ("sentence1", "sentence2", "score")
READ = [
    (None, ["0", "1", "0", "1"], "-+-+"),
    (None, ["0.0", "1.0", "1.0"], "-++"),
    (None, ["true", "False", "TRUE"], "+-+"),
    (None, ["+1", "00", "1e0", "0,0"], "+-+-"),
    (None, ["duplicate", "not_duplicate", "Not Duplicate", "non-duplicate"], "+---"),
    (None, ["1", "0", "", "-1"], "+-??"),
    (None, ["entailment", "neutral", "contradiction", "-"], "+o-?"),
    (None, ["e", "n", "c", "E"], "+o-+"),
    (None, ["0", "2.5", "4", "5"], "<<++"),
    (None, ["0", "0.5", "0.79", "0.8", "1"], "<<<++"),
    (None, ["0,5", "1,5", "4,2"], "<<+"),
    (GOLD, ["0", "1", "2", "-1"], "+o-?"),
    (PREMISE, ["0", "1", "2", "-1"], "+o-?"),
    (SCORE, ["0", "1", "2", "4"], "<<<+"),
    (("query", "document", "score"), ["0", "1"], "-+"),
    (("question1", "question2", "is_duplicate"), ["1", "0"], "+-"),
]


@pytest.mark.parametrize(("names", "labels", "expected"), READ)
def test_pairs_that_do_not_belong_together_are_no_positives(tmp_path, names, labels, expected):
    names = names or ("sentence1", "sentence2", "label")
    assert faults(pairs(tmp_path, labels, names)) == expected
    swapped = [(label, f"two {n}", n, f"one {n}") for n, label in enumerate(labels)]
    other = write_table(tmp_path / "b.csv", (names[2], names[1], "idx", names[0]), swapped)
    assert [row.texts for row in read_rows(other, "pairs")] == [
        row.texts for row in read_rows(tmp_path / "a.csv", "pairs")
    ]
    assert faults(other) == expected
    if len(set(expected) & {"+", "-"}) == 2 or "<" in expected:
        task = read_task(tmp_path / "a.csv")
        found = (task.label if isinstance(task, BinaryPairs) else task.score).tolist()
        assert isinstance(task, ScoredPairs) == ("<" in expected)
        if isinstance(task, BinaryPairs):
            assert found == [mark == "+" for mark in expected if mark in "+-"]
            assert task.left_out == len(expected) - len(found)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [([0, 1], "-+"), ([0.0, 1.0, None], "-+?"), ([True, False], "+-"), ([1.5, 4.5], "<+"), ([1.0, float("nan")], "+?")],
)
def test_labels_that_are_numbers_and_truth_values(tmp_path, name, labels, expected):
    assert faults(pairs(tmp_path, labels, name=name)) == expected


@pytest.mark.parametrize(
    ("names", "labels", "said"),
    [
        (None, ["0", "1", "2"], ": the labels 0, 1, 2 in column 'label' may be classes of NLI or scores; write the"),
        (PREMISE, ["0", "1"], ": the labels 0, 1 in column 'label' may mean entailment and neutral, or no and yes"),
        (None, ["+1", "-1"], ": labels 1 and -1: -1 may mean a negative or no label; write 0, or"),
        (None, ["1", "0", "maybe"], ":4: label 'maybe' is not one of 0, 1, true, false, yes, no, duplicate"),
        (None, ["1", "0", "e"], ":4: label 'e' is not one of"),
        (None, ["0", "5", "7"], ":4: score '7' is not a number from 0 to 5; fix it or set data.score_range"),
        (PREMISE[:2], None, ": no column 'label' for data.view: pairs"),
        (("sentence1", "sentence2", "label", "score"), None, ": the columns score, label may each be the label"),
        (("sentence1", "sentence2", "agree"), ["0", "1"], ": column 'agree' may say which pairs belong together"),
        (("anchor", "positive", "my_score"), ["0.3", "12"], "set data.columns: [anchor, positive, my_score], else ["),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_told_are_refused(tmp_path, names, labels, said):
    names = names or ("sentence1", "sentence2", "label")
    path = tmp_path / "a.csv"
    if labels is None:
        write_table(path, names, [tuple(str(n) for n in range(len(names)))])
    else:
        pairs(tmp_path, labels, names)
    with pytest.raises(CseError) as caught:
        list(read_rows(path, "pairs"))
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [PREMISE, ("question1", "question2", "is_duplicate")])
def test_zero_and_one_are_no_classes_of_nli(tmp_path, names):
    """0 would be entailment: pairs that are no duplicates would be trained as positives."""
    path = pairs(tmp_path, ["0", "1", "", "-1"], names)
    with pytest.raises(CseError, match=r"a.csv: the labels 0, 1 in column .* may mean entailment and neutral, or no"):
        list(read_rows(path, "labelled"))


@pytest.mark.parametrize(("view", "third"), [("pairs", "0"), ("pairs", "no"), ("pairs", "3.8"), ("triplets", "0")])
def test_a_label_without_a_name_is_refused(tmp_path, view, third):
    (tmp_path / "a.txt").write_text(f"one\ttwo\tthree\na\tb\t{third}\n", encoding="utf-8")
    with pytest.raises(CseError, match=r"a.txt:2: a label or score stands behind the texts; write a line with names"):
        list(read_rows(tmp_path / "a.txt", view))


def test_a_label_that_the_first_object_lacks_is_a_label(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b"}, {"sentence1": "c", "sentence2": "d", "label": 0}]
    assert faults(write_objects(tmp_path / "a.jsonl", rows)) == "?-"


def test_columns_that_are_named_say_what_they_are(tmp_path):
    path = write_table(tmp_path / "a.csv", ("x", "y", "same", "n"), [("a", "b", "1", 7), ("c", "d", "0", 7)])
    assert faults(path, columns=["x", "y", "same"]) == "+-"
    assert faults(path, columns=["x", "y"]) == "++"
    path = pairs(tmp_path, ["0", "50", "90"], SCORE)
    notes = []
    assert faults(path, score_range=(0, 100), tell=notes.append) == "<<+"
    assert notes == ["scores from 0 to 100: pairs of 80 or more are positives, the others are left out"]


@pytest.mark.parametrize("values", [["x", "y"], ["1", "2"], ["dev", "dev"], ["1", "1"]])
def test_a_column_beside_pairs_that_is_no_label(tmp_path, values):
    assert faults(pairs(tmp_path, values, ("sentence1", "sentence2", "source"))) == "++"


def test_negatives_stand_beside_the_positives_of_their_text(tmp_path):
    rows = [("a", "a1", 1), ("a", "a2", 0), ("b", "b1", 1), ("a", "a3", 1), ("c", "c1", 0), ("a", "a4", "")]
    path = write_table(tmp_path / "a.csv", ("sentence1", "sentence2", "label"), rows)
    found = list(read_rows(path, "triplets"))
    assert [row.texts for row in found if all(row.texts) and not row.fault] == [("a", "a1", "a2"), ("a", "a3", "a2")]
    assert [(row.texts, row.fault) for row in found if not all(row.texts)] == [
        (("a", "a4", None), "no_label"), (("b", "b1", None), ""), (("c", "c1", None), "labelled_negative"),
    ]  # fmt: skip


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"query": "q", "pos": ["a"], "neg": ["x", "y"]}, [("q", "a", "x"), ("q", "a", "y")]),
        ({"query": "q", "pos": ["a", "b"], "neg": ["x"]}, [("q", "a", "x"), ("q", "b", "x")]),
        ({"query": "q", "pos": ["a"], "neg": []}, [("q", "a", None)]),
        ({"anchor": "q", "positive": "a", "negative_1": "x", "negative_2": "y"}, [("q", "a", "x"), ("q", "a", "y")]),
        ({"anchor": "q", "positive": "a", "negative": ["x", ""]}, [("q", "a", "x")]),
        ({"query": "q", "positive": "a", "negative": "x"}, [("q", "a", "x")]),
    ],
)  # fmt: skip
def test_several_positives_and_negatives_in_a_row(tmp_path, ending, row, expected):
    path = tmp_path / f"a.{ending}"
    if ending == "jsonl":
        path.write_text(json.dumps(row), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    assert [found.texts for found in read_rows(path, "triplets")] == expected
    assert {found.texts for found in read_rows(path, "pairs")} == {texts[:2] for texts in expected}


def test_a_list_written_as_text_is_refused(tmp_path):
    path = write_table(tmp_path / "a.csv", ("query", "pos", "neg"), [("q", "a", "x"), ("q", "['a', 'b']", "x")])
    with pytest.raises(CseError, match=r"a.csv:3: a list of texts written as text; write the rows as jsonl"):
        list(read_rows(path, "triplets"))


def test_what_is_left_out_is_counted_and_said(tmp_path):
    (tmp_path / "none").mkdir()
    given = {"source": "files", "dev_path": str(tmp_path / "none"), "evaluation_path": str(tmp_path / "none")}
    path = pairs(tmp_path, ["5", "0", "4", "", "4.5"], SCORE)
    report = prepare(DataSettings(view="pairs", train_path=str(path), **given), tmp_path / "out", progress=False)
    assert PreparedData(tmp_path / "out").train["sent0"].to_pylist() == ["one 0", "one 2", "one 4"]
    counted = {reason: (entry["count"], entry["first"]) for reason, entry in report["train"]["dropped"].items()}
    assert (counted["low_score"], counted["no_label"]) == ((1, "a.csv:3"), (1, "a.csv:5"))
    assert "a.csv: scores from 0 to 5: pairs of 4 or more are positives, the others are left out" in report["notes"]
    path = pairs(tmp_path, ["0", "0"])
    with pytest.raises(CseError, match=r"all 2 rows were dropped: 2 labelled_negative .*; give pairs labelled 1"):
        prepare(DataSettings(view="pairs", train_path=str(path), **given), tmp_path / "out", progress=False)


@pytest.mark.parametrize("values", [[1.0, 2.0, None], [1, 2, None], ["1", "2", ""]])
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_categories_may_be_numbers(tmp_path, values, name):
    path = write_table(tmp_path / name, ("text", "label"), [(f"t {n}", value) for n, value in enumerate(values)])
    assert [row.label for row in read_rows(path, "categories")] == ["1", "2", None]
    truths = write_table(tmp_path / "b.jsonl", ("text", "label"), [("a", True), ("b", "False")])
    assert list(read_rows(truths, "categories")) == [Row(1, ("a",), "true"), Row(2, ("b",), "false")]
    task = write_table(tmp_path / name, ("text", "label"), [(f"t {n}", values[n % 2]) for n in range(8)])
    assert set(read_task(task).test_label) == {"1", "2"}
