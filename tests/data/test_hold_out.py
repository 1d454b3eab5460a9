"""Rows held out of the training rows, and dev and test parts of a task: nothing that is tested was seen by a choice."""

import re
from dataclasses import replace

import numpy as np
import pytest

from cse.data.clean import overlap_key
from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.data.tasks.kinds import (
    HELD_OUT,
    BinaryPairs,
    LabelledTexts,
    Retrieval,
    ScoredPairs,
    Triplets,
    describe,
    is_proxy,
)
from cse.data.tasks.parts import dev_part, part_for_test
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


def made(tmp_path, rows, view, **settings):
    """Prepare a csv with a fifth of its rows held out; return the data and the dev task."""
    head = {"pairs": ("sent0", "sent1"), "categories": ("text", "category"), "documents": ("title", "text")}[view]
    path = write_table(tmp_path / "rows.csv", head, rows)
    given = {"source": "files", "view": view, "train_path": str(path), "hold_out": 0.2} | settings
    prepare(DataSettings(**given), tmp_path / "out", progress=False)
    data = PreparedData(tmp_path / "out")
    return data, open_dev(data)


def texts_of(**counts):
    """So many texts of each label."""
    return [(f"text {label} {number}", label) for label, count in counts.items() for number in range(count)]


def trained_on(data):
    return {*data.train["sent0"].to_pylist(), *data.train["sent1"].to_pylist()}


def test_whole_documents_are_held_out_and_called_a_proxy(tmp_path, task):
    body = "First sentence of {0} here. Second sentence of {0} there. Third sentence of {0} too."
    rows = {f"Title {number}": body.format(f"word{number}") for number in range(20)}
    data, dev = made(tmp_path, rows.items(), "documents", task_path=task)
    assert isinstance(dev, Retrieval) and is_proxy(dev)
    held = rows.keys() & {*dev.queries}
    assert 2 <= len(held) <= 6 and not held & {*data.train["sent0"].to_pylist()}, "about a fifth"
    assert len(data.train) + len(dev.relevance) == 80, "four pairs of each document"
    by_query = {dev.queries[q]: dev.documents[d] for q, d in zip(dev.query, dev.document, strict=True)}
    assert all(by_query[title] == f"{title} {rows[title]}" for title in held)
    assert dev_measure(dev, "MAP", "train.dev_measure") == dev_measure(dev, "MAP (proxy)", "x") == "MAP (proxy)"
    assert score_dev(FakeEncoder(), dev).label == "dev nDCG@10 (proxy)"
    assert data.report["dev"]["from"] == "rows.csv"


def test_a_held_out_query_does_not_find_itself_among_the_documents(tmp_path, task):
    """Two questions that mean the same are a pair in both directions."""
    rows = [pair for i in range(20) for pair in ((f"word{i} a", f"other{i} b"), (f"Other{i} B!", f"word{i} c"))]
    _, dev = made(tmp_path, rows, "pairs", task_path=task)
    found = [(dev.queries[q], dev.documents[d]) for q, d in enumerate(dev.own.tolist()) if d >= 0]
    assert found
    assert all(query.lower().rstrip("!") == document for query, document in found)


@pytest.mark.parametrize("measured", ["task", "held out"])
def test_what_selected_can_be_trained_on_after_the_choice(tmp_path, task, measured):
    rows = texts_of(a=8, b=8, c=8)
    given = {"task_path": task} if measured == "task" else {}
    data, dev = made(tmp_path, rows, "categories", **given)
    again, none = made(tmp_path, rows, "categories", **given, dev="none")
    assert none is None and len(dev) == 6
    apart = [] if measured == "task" else open_tasks(data, OWN)[0].test
    assert [one.test for one in open_tasks(again, OWN) if measured == "held out"] == ([apart] if apart else [])
    assert trained_on(again) == {text for text, _ in rows} - {*apart}


def test_labels_are_held_out_twice_where_they_have_texts_for_it(tmp_path, task):
    rows = texts_of(a=20, b=6, c=5)
    data, dev = made(tmp_path, rows, "categories")
    (measured,) = open_tasks(data, OWN)
    for part in (dev, measured):
        counts = [part.test_label.count(label) for label in "abc"]
        assert 2 <= counts[0] <= 6
        assert counts[1:] == [2, 0], "five are too few for 2 + 2 + 2"
        assert {*part.reference} == trained_on(data)
    texts = [*dev.reference, *dev.test, *measured.test]
    assert sorted(texts) == sorted(text for text, _ in rows), "each in one part"
    assert not is_proxy(dev) and describe(dev).endswith(f"{len(dev.test)} test rows, held out of the training rows")
    few = texts_of(a=5, b=5, c=5)
    said = refusal(made, tmp_path, few, "categories")
    assert re.search(r"0 of 15 rows .*: of each label 2 texts for each of 2 parts and 2 .* so 6 or", said)
    _, dev = made(tmp_path, few, "categories", task_path=task)
    assert 6 <= len(dev.test) <= 9, "about a fifth, at least two of each"


def test_beside_dev_pairs_of_ones_own_rows_are_held_out_to_be_measured_alone(tmp_path, task):
    rows = [(f"q{i}", f"a{i}") for i in range(30)]
    dev = write_lines(tmp_path / "dev.csv", ["sentence1,sentence2,score", "a b,c d,1", "e f,g h,4"])
    data, dev_task = made(tmp_path, rows, "pairs", dev_path=str(dev))
    (measured,) = open_tasks(data, OWN)
    assert (dev_task.name, len(measured) + len(data.train)) == ("dev", 30) and 3 <= len(measured) <= 9
    data, dev_task = made(tmp_path, rows, "pairs", dev_path=str(dev), task_path=task)
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
    data, dev = made(tmp_path, rows, "pairs", hold_out=0.1)
    (measured,) = open_tasks(data, OWN)
    trained = said(*trained_on(data))
    selects, measures = said(*dev.queries, *dev.documents), said(*measured.queries, *measured.documents)
    assert len(said(*dev.queries)) > 5 < len(said(*measured.queries)) and len(data.train) > 200
    assert not trained & selects and not trained & measures and not selects & measures


def test_a_text_with_two_labels_is_in_one_part(tmp_path):
    labels = [(f"text {n // 2}{'!' * (n % 2)}", f"label {n % 2 if n < 120 else n % 5}") for n in range(400)]
    data, dev = made(tmp_path, labels, "categories", hold_out=0.1)
    (measured,) = open_tasks(data, OWN)
    parts = [said(*texts) for texts in (dev.test, measured.test, dev.reference)]
    assert all(len(part) > 10 for part in parts)
    assert len(set.union(*parts)) == sum(map(len, parts)) == 200


@pytest.mark.parametrize("view", ["pairs", "categories"])
def test_more_rows_leave_what_was_held_out_held_out(tmp_path, view):
    """Rows come in anywhere in the file; none that was trained on before is held out now, and none held out is lost."""

    def row(number):
        return f"question {number}", f"label {number % 8}" if view == "categories" else f"answer {number}"

    found = []
    for numbers in (range(1000), [*range(1000, 1005), *range(990), *range(1005, 1010), *range(990, 1000)]):
        data, dev = made(tmp_path, [row(n) for n in numbers], view, hold_out=0.1)
        (measured,) = open_tasks(data, OWN)
        texts = [said(*(part.test if view == "categories" else part.queries)) for part in (dev, measured)]
        assert all(60 < len(part) < 300 for part in texts)
        found.append((*texts, said(*data.train["sent0"].to_pylist())))
    for before, after in zip(found[0][:2], found[1][:2], strict=True):
        assert before <= after, "a text that selects or measures went elsewhere"
        assert not found[0][2] & after, "a text was trained on before"


# ---- halves of a task -----------------------------------------------------------------------------------------------


def test_the_test_texts_of_labels_are_halved():
    texts, rows = [f"text {number}" for number in range(40)], [f"row {number}" for number in range(90)]
    task = LabelledTexts("rows held out", rows, ["a"] * 90, texts, [str(n % 4) for n in range(40)], HELD_OUT)
    parts = dev_part(task), part_for_test(task)
    assert all(10 <= len(part.test) <= 30 and part.reference == rows for part in parts)
    assert sorted(parts[0].test + parts[1].test) == sorted(texts)
    assert {*parts[0].test_label} == {*parts[1].test_label} == {*"0123"}, "of each label in both"
    pairs = replace(task, test_label=[str(n // 2) for n in range(40)])
    halves = [{*part.test_label} for part in (dev_part(pairs), part_for_test(pairs))]
    assert halves[0].isdisjoint(halves[1]) and min(map(len, halves)) >= 5, "of two texts each finds the other"


def test_a_searchs_queries_are_shared_out_with_their_judgements():
    query = np.array([0, 0, 1, 2, 3, 3, 3, 4, 5, 6])
    queries, documents = [f"q{n}" for n in range(7)], [f"d{n}" for n in range(10)]
    task = Retrieval("search", queries, documents, query, np.arange(10), query % 3 + 1)
    parts = dev_part(task), part_for_test(task)
    assert sorted(parts[0].queries + parts[1].queries) == task.queries
    assert min(len(part.queries) for part in parts) >= 2

    def judgements(part):
        return [(part.queries[q], d, r) for q, d, r in zip(part.query, part.document, part.relevance, strict=True)]

    assert sorted(judgements(parts[0]) + judgements(parts[1])) == sorted(judgements(task))
    assert all(part.documents == task.documents for part in parts)


def halves_of(rows, kind, *gold):
    """Rows of texts, and of numbers behind them, in both halves, as sets."""
    task = kind("own", *map(list, zip(*rows, strict=True)), *gold)
    names = [*task.held_out, *(["score"] if kind is ScoredPairs else [])]
    halves = dev_part(task), part_for_test(task)
    return [{*zip(*(getattr(half, name) for name in names), strict=True)} for half in halves]


def keys_of(rows, columns=slice(2)):
    return {text.casefold().strip(" ?!.") for row in rows for text in row[columns]}


def test_pairs_that_share_a_text_stay_together_however_it_is_written():
    """A chain: the second text of a pair is the first of the next one."""
    rows = [(f"text {n}, {step}", f"Text {n}, {step + 1}{'?' * (step % 2)}") for n in range(20) for step in range(3)]
    first, second = halves_of(rows, ScoredPairs, np.arange(60))
    assert first | second == {(*row, n) for n, row in enumerate(rows)} and min(len(first), len(second)) >= 15
    assert keys_of(first).isdisjoint(keys_of(second))
    again = halves_of(rows[::-1], ScoredPairs, np.arange(60)[::-1])
    assert again == [first, second], "by their text, wherever a row stands"
    assert halves_of(rows, BinaryPairs, np.arange(60) % 2 == 0) == [{row[:2] for row in half} for half in again]
    few = Triplets("few", list("abc"), list("def"), list("ghi"))
    assert "task few: 3 rows are too few" in refusal(dev_part, few)


def test_triplets_share_no_anchor_and_where_they_can_no_text():
    """Nineteen anchors, three triplets of each; then with negatives from a pool, which binds all to each other."""
    rows = [(f"anchor {n}", f"positive {n}, {i}", f"negative {n}") for n in range(19) for i in range(3)]
    first, second = halves_of(rows, Triplets)
    assert keys_of(first, slice(3)).isdisjoint(keys_of(second, slice(3))) and min(len(first), len(second)) >= 12
    pool = [(anchor, positive, f"negative {n % 3}") for n, (anchor, positive, _) in enumerate(rows)]
    first, second = halves_of(pool, Triplets)
    assert len(first) + len(second) == 57 and min(len(first), len(second)) >= 12
    assert keys_of(first, slice(1)).isdisjoint(keys_of(second, slice(1)))


def test_a_query_that_was_judged_twice_is_in_one_half():
    queries = [f"{text} {n}" for n in range(15) for text in ("how long", "How long", "how long?")[: 1 + n % 3]]
    place = np.arange(len(queries))
    task = Retrieval("search", queries, [f"d{n}" for n in place], place, place, np.ones_like(place), place[::-1].copy())
    first, second = ({*half.queries} for half in (dev_part(task), part_for_test(task)))
    assert first | second == {*queries} and keys_of(zip(first)).isdisjoint(keys_of(zip(second)))
    own = dict(zip(queries, task.own.tolist(), strict=True))
    assert [own[query] for query in dev_part(task).queries] == dev_part(task).own.tolist()
