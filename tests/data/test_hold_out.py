"""Rows held out of the training rows: real labels, or pairs of the same making, which are a proxy and called so."""

from __future__ import annotations

import re

import pytest

from cse.data.clean import overlap_key
from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.data.tasks.kinds import LabelledTexts, Retrieval, describe, is_proxy
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.evaluation.score import dev_measure, score_dev
from cse.settings.data import DataSettings
from tests.evaluation.test_sts import FakeEncoder
from tests.parts import refusal
from tests.rows import write_lines, write_table


@pytest.fixture
def task(tmp_path):
    """A task of the user's own: nothing is held out to be measured."""
    return str(write_lines(tmp_path / "task.csv", ["sentence1,sentence2,label", "one,two,1", "three,four,0"]))


def made(tmp_path, rows, head, **settings):
    """Prepare a csv with a fifth of its rows held out; return the data and the dev task."""
    path = write_table(tmp_path / "rows.csv", head, rows)
    given = {"source": "files", "train_path": str(path), "hold_out": 0.2} | settings
    prepare(DataSettings(**given), tmp_path / "out", progress=False)
    data = PreparedData(tmp_path / "out")
    return data, open_dev(data)


def test_texts_of_each_label_are_held_out(tmp_path, task):
    rows = [(f"text {label} {n}", label) for label, count in (("a", 10), ("b", 15), ("c", 3)) for n in range(count)]
    data, dev = made(tmp_path, rows, ("text", "category"), view="categories", task_path=task)
    assert isinstance(dev, LabelledTexts)
    counts = [dev.test_label.count(label) for label in "abc"]
    assert counts[0] in (2, 3) and counts[1] in (2, 3, 4), "about a fifth, at least two"
    assert counts[2] == 0, "a label of three keeps its texts"
    assert sorted([*dev.reference, *dev.test]) == sorted(text for text, _ in rows)
    trained_on = {*data.train["sent0"].to_pylist(), *data.train["sent1"].to_pylist()}
    assert trained_on == set(dev.reference)
    assert not is_proxy(dev)
    assert describe(dev).endswith(f"and {sum(counts)} test rows, held out of the training rows")


def test_whole_documents_are_held_out_and_called_a_proxy(tmp_path, task):
    body = "First sentence of {0} here. Second sentence of {0} there. Third sentence of {0} too."
    rows = [(f"Title {number}", body.format(f"word{number}")) for number in range(20)]
    data, dev = made(tmp_path, rows, ("title", "text"), view="documents", task_path=task)
    assert isinstance(dev, Retrieval)
    assert is_proxy(dev)
    held = {text.split()[-1] for text in dev.queries if text.startswith("Title")}
    assert 2 <= len(held) <= 6, "about a fifth"
    assert all(text.split()[-1] not in held for text in data.train["sent0"].to_pylist() if text.startswith("Title"))
    assert len(data.train) + len(dev.relevance) == 80, "four pairs of each document"
    by_query = {dev.queries[q]: dev.documents[d] for q, d in zip(dev.query, dev.document, strict=True)}
    number = next(iter(held))
    assert by_query[f"Title {number}"] == f"Title {number} {body.format(f'word{number}')}"
    assert dev_measure(dev, "MAP", "train.dev_measure") == dev_measure(dev, "MAP (proxy)", "x") == "MAP (proxy)"
    assert score_dev(FakeEncoder(), dev).label == "dev nDCG@10 (proxy)"
    assert data.report["dev"]["from"] == "rows.csv"


def test_a_held_out_query_does_not_find_itself_among_the_documents(tmp_path, task):
    """Two questions that mean the same are a pair in both directions."""
    rows = [pair for i in range(20) for pair in ((f"word{i} a", f"other{i} b"), (f"Other{i} B!", f"word{i} c"))]
    _, dev = made(tmp_path, rows, ("sent0", "sent1"), view="pairs", task_path=task)
    found = [(dev.queries[q], dev.documents[d]) for q, d in enumerate(dev.own.tolist()) if d >= 0]
    assert found
    assert all(query.lower().rstrip("!") == document for query, document in found)


@pytest.mark.parametrize("measured", ["task", "held out"])
def test_what_selected_can_be_trained_on_after_the_choice(tmp_path, task, measured):
    rows = [(f"text {label} {i}", label) for label in "abc" for i in range(8)]
    given = {"view": "categories"} | ({"task_path": task} if measured == "task" else {})
    data, dev = made(tmp_path, rows, ("text", "category"), **given)
    again, none = made(tmp_path, rows, ("text", "category"), **given, dev="none")
    assert none is None and len(dev) == 6
    apart = [] if measured == "task" else open_tasks(data, OWN)[0].test
    assert [one.test for one in open_tasks(again, OWN) if measured == "held out"] == ([apart] if apart else [])
    trained_on = {*again.train["sent0"].to_pylist(), *again.train["sent1"].to_pylist()}
    assert trained_on == {text for text, _ in rows} - {*apart}


def test_labels_are_held_out_twice_where_they_have_texts_for_it(tmp_path, task):
    rows = [(f"text {label} {i}", label) for label, count in (("a", 20), ("b", 6), ("c", 5)) for i in range(count)]
    data, dev = made(tmp_path, rows, ("text", "category"), view="categories")
    (measured,) = open_tasks(data, OWN)
    for part in (dev, measured):
        counts = [part.test_label.count(label) for label in "abc"]
        assert 2 <= counts[0] <= 6
        assert counts[1:] == [2, 0], "five are too few for 2 + 2 + 2"
        assert {*part.reference} == {*data.train["sent0"].to_pylist(), *data.train["sent1"].to_pylist()}
    assert not {*dev.test} & {*measured.test}
    few = [(f"text {label} {i}", label) for label in "abc" for i in range(5)]
    said = refusal(made, tmp_path, few, ("text", "category"), view="categories")
    assert re.search(r"0 of 15 rows .*: of each label 2 texts for each of 2 parts and 2 .* so 6 or", said)
    made(tmp_path, few, ("text", "category"), view="categories", task_path=task)


def test_beside_dev_pairs_of_ones_own_rows_are_held_out_to_be_measured_alone(tmp_path, task):
    rows = [(f"q{i}", f"a{i}") for i in range(30)]
    dev = write_lines(tmp_path / "dev.csv", ["sentence1,sentence2,score", "a b,c d,1", "e f,g h,4"])
    data, dev_task = made(tmp_path, rows, ("sent0", "sent1"), view="pairs", dev_path=str(dev))
    (measured,) = open_tasks(data, OWN)
    assert (dev_task.name, len(dev_task)) == ("dev", 2)
    assert 3 <= len(measured) <= 9
    assert len(measured) + len(data.train) == 30
    data, dev_task = made(tmp_path, rows, ("sent0", "sent1"), view="pairs", dev_path=str(dev), task_path=task)
    assert (dev_task.name, len(data.train)) == ("dev", 30), "nothing is missing"
    assert data.report["notes"] == ["data.hold_out: none held out; data.dev_path selects and data.task_path measures"]


def said(*texts):
    """Return the texts without case, punctuation and white space."""
    return {overlap_key(text) for text in texts}


def test_no_held_out_text_is_a_training_row_or_in_the_other_part_however_it_is_written(tmp_path):
    """Questions as people type them: with other blanks, case and marks; answers that several questions share."""
    written = ("how do I cancel order {}?", "  How do I cancel order {} ", "\thow do i cancel order {} !")
    answers = [f"Open page {n} ." if n % 3 else f"open page {n // 30}" for n in range(150)]
    rows = [(way.format(n), answers[n]) for n in range(150) for way in written]
    data, dev = made(tmp_path, rows, ("question", "answer"), view="pairs", hold_out=0.1, columns=["question", "answer"])
    (measured,) = open_tasks(data, OWN)
    trained = said(*data.train["sent0"].to_pylist(), *data.train["sent1"].to_pylist())
    selects, measures = said(*dev.queries, *dev.documents), said(*measured.queries, *measured.documents)
    assert len(said(*dev.queries)) > 5 < len(said(*measured.queries)) and len(data.train) > 200
    assert not trained & selects
    assert not trained & measures
    assert not selects & measures


def test_a_text_with_two_labels_is_in_one_part(tmp_path):
    labels = [(f"text {n // 2}{'!' * (n % 2)}", f"label {n % 2 if n < 120 else n % 5}") for n in range(400)]
    data, dev = made(tmp_path, labels, ("text", "category"), view="categories", hold_out=0.1)
    (measured,) = open_tasks(data, OWN)
    parts = [said(*texts) for texts in (dev.test, measured.test, dev.reference)]
    assert all(len(part) > 10 for part in parts)
    assert len(set.union(*parts)) == sum(map(len, parts)) == 200


@pytest.mark.parametrize("view", ["pairs", "categories"])
def test_more_rows_leave_what_was_held_out_held_out(tmp_path, view):
    """Rows come in anywhere in the file; none that was trained on before is held out now, and none held out is lost."""

    def row(number):
        return f"question {number}", f"label {number % 8}" if view == "categories" else f"answer {number}"

    head = {"pairs": ("sent0", "sent1"), "categories": ("text", "category")}[view]
    found = []
    for name, numbers in (
        ("few", range(1000)),
        ("many", [*range(1000, 1005), *range(990), *range(1005, 1010), *range(990, 1000)]),
    ):
        (tmp_path / name).mkdir()
        data, dev = made(tmp_path / name, [row(n) for n in numbers], head, view=view, hold_out=0.1)
        (measured,) = open_tasks(data, OWN)
        texts = [said(*(part.test if view == "categories" else part.queries)) for part in (dev, measured)]
        assert all(60 < len(part) < 300 for part in texts)
        found.append((*texts, said(*data.train["sent0"].to_pylist())))
    for before, after in zip(found[0][:2], found[1][:2], strict=True):
        assert before <= after, "a text that selects or measures went elsewhere"
        assert not found[0][2] & after, "a text was trained on before"
