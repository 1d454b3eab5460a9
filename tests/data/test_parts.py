"""Dev and test parts: nothing that is tested was seen by a choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cse.data.tasks.kinds import HELD_OUT, BinaryPairs, LabelledTexts, Retrieval, ScoredPairs, Triplets
from cse.data.tasks.parts import dev_part, part_for_test
from cse.errors import CseError


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
    wanted = {(f"q{q}", d, int(q % 3 + 1)) for q, d in zip(query, range(10), strict=True)}
    parts = dev_part(task), part_for_test(task)
    assert sorted(parts[0].queries + parts[1].queries) == task.queries
    assert min(len(part.queries) for part in parts) >= 2
    found = [
        (part.queries[q], int(d), int(r))
        for part in parts
        for q, d, r in zip(part.query, part.document, part.relevance, strict=True)
    ]
    assert len(found) == 10
    assert set(found) == wanted
    assert all(part.documents == task.documents for part in parts)


def test_pairs_are_halved_with_their_scores():
    pairs = ScoredPairs("pairs", list("abcdefg"), list("hijklmn"), np.arange(7.0))
    halves = dev_part(pairs), part_for_test(pairs)
    rows = [row for half in halves for row in zip(half.sentence1, half.sentence2, half.score, strict=True)]
    assert sorted(rows) == sorted(zip(pairs.sentence1, pairs.sentence2, pairs.score, strict=True))


def halves_of(texts, kind=ScoredPairs):
    """Rows of these texts in both halves, as sets."""
    columns = [list(column) for column in zip(*texts, strict=True)]
    gold = {ScoredPairs: [np.arange(len(texts))], BinaryPairs: [np.arange(len(texts)) % 2 == 0]}
    task = kind("own", *columns, *gold.get(kind, []))
    halves = dev_part(task), part_for_test(task)
    return [{*zip(*(getattr(half, name) for name in task.held_out), strict=True)} for half in halves]


def keys_of(rows, columns=slice(None)):
    return {text.casefold().strip(" ?!.") for row in rows for text in row[columns]}


@pytest.mark.parametrize("kind", [ScoredPairs, BinaryPairs])
def test_pairs_that_share_a_text_stay_together_however_it_is_written(kind):
    """A chain: the second text of a pair is the first of the next one."""
    rows = [(f"text {n}, {step}", f"Text {n}, {step + 1}{'?' * (step % 2)}") for n in range(20) for step in range(3)]
    first, second = halves_of(rows, kind)
    assert len(first) + len(second) == 60 and min(len(first), len(second)) >= 15
    assert keys_of(first).isdisjoint(keys_of(second))
    again = halves_of(rows[::-1], kind)
    assert again == [first, second], "by their text, wherever a row stands"


def test_triplets_share_no_anchor_and_where_they_can_no_text():
    """Nineteen anchors, three triplets of each; then with negatives from a pool, which binds all to each other."""
    rows = [(f"anchor {n}", f"positive {n}, {i}", f"negative {n}") for n in range(19) for i in range(3)]
    first, second = halves_of(rows, Triplets)
    assert keys_of(first).isdisjoint(keys_of(second)) and min(len(first), len(second)) >= 12
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


def test_the_parts_are_the_same_each_time_and_need_a_few_rows():
    task = Triplets("triplets", list("abcde"), list("fghij"), list("klmno"))
    assert dev_part(task) == dev_part(task)
    with pytest.raises(CseError, match="task few: 3 rows are too few"):
        dev_part(Triplets("few", list("abc"), list("def"), list("ghi")))
