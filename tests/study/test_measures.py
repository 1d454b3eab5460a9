"""Dev and test parts: nothing that is tested was seen by a choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cse.data.tasks.kinds import HELD_OUT, LabelledTexts, Retrieval, ScoredPairs, Triplets
from cse.study.measures import CXC, DEV, apart, columns, dev_part, gained, kept, part_for_test


def test_labelled_texts_keep_their_test_rows():
    texts = [f"text {number}" for number in range(50)]
    task = LabelledTexts("intents", texts, [str(n % 5) for n in range(50)], ["a", "b"], ["0", "1"])
    dev = dev_part(task)
    assert part_for_test(task) is task
    assert 5 <= len(dev.test) <= 15, "about a fifth"
    assert sorted([*dev.test, *dev.reference]) == sorted(texts)
    labels = dict(zip(texts, task.reference_label, strict=True))
    assert [labels[text] for text in dev.test + dev.reference] == dev.test_label + dev.reference_label


def test_a_dev_part_of_labelled_texts_shares_none_with_the_rest_however_it_is_written():
    texts = [f"Text {number}{mark}" for number in range(60) for mark in ("", " ?")]
    task = LabelledTexts("intents", texts, ["a"] * 120, [f"text {number}!" for number in range(0, 60, 2)], ["a"] * 30)
    dev = dev_part(task)
    parts = [{text.casefold().strip(" ?!") for text in part} for part in (dev.test, dev.reference, task.test)]
    assert len(parts[0]) >= 3
    assert len(dev.test) == 2 * len(parts[0])
    assert len(dev.test) + len(dev.reference) == 120
    assert parts[0].isdisjoint(parts[1] | parts[2])
    more = replace(task, reference=[*texts[:7], "new", *texts[7:]], reference_label=["a"] * 121)
    assert set(dev_part(more).test) - {"new"} == set(dev.test), "more texts leave the part"


def test_where_the_reference_texts_are_the_training_rows_the_test_texts_are_halved():
    texts, rows = [f"text {number}" for number in range(40)], [f"row {number}" for number in range(90)]
    task = LabelledTexts("rows held out", rows, ["a"] * 90, texts, [str(n % 4) for n in range(40)], HELD_OUT)
    parts = dev_part(task), part_for_test(task)
    assert all(10 <= len(part.test) <= 30 and part.reference == rows for part in parts)
    assert sorted(parts[0].test + parts[1].test) == sorted(texts)
    assert list(apart(task)) == [*texts, *parts[0].test]


def test_a_searchs_queries_are_shared_out_with_their_judgements():
    query = np.array([0, 0, 1, 2, 3, 3, 3, 4, 5, 6])
    queries, documents = [f"q{n}" for n in range(7)], [f"d{n}" for n in range(10)]
    task = Retrieval("search", queries, documents, query, np.arange(10), query % 3 + 1)
    wanted = {(f"q{q}", d, int(q % 3 + 1)) for q, d in zip(query, range(10), strict=True)}
    parts = dev_part(task), part_for_test(task)
    assert sorted(parts[0].queries + parts[1].queries) == task.queries
    assert [len(part.queries) for part in parts] == [4, 3]
    found = [
        (part.queries[q], int(d), int(r))
        for part in parts
        for q, d, r in zip(part.query, part.document, part.relevance, strict=True)
    ]
    assert len(found) == 10
    assert set(found) == wanted
    assert all(part.documents == task.documents for part in parts)


def test_pairs_and_triplets_are_halved():
    pairs = ScoredPairs("pairs", list("abcdefg"), list("hijklmn"), np.arange(7.0), ["one"] * 7)
    halves = dev_part(pairs), part_for_test(pairs)
    rows = [row for half in halves for row in zip(half.sentence1, half.sentence2, half.score, strict=True)]
    assert sorted(rows) == sorted(zip(pairs.sentence1, pairs.sentence2, pairs.score, strict=True))
    triplets = Triplets("triplets", list("abcde"), list("fghij"), list("klmno"))
    assert sorted(dev_part(triplets).anchor + part_for_test(triplets).anchor) == list("abcde")


def test_columns_of_an_evaluation():
    labels = {"kind": "labelled texts", "main": "kNN", "values": {"kNN": 90.0, "MAP": 50.0, "probe": 91.0}}
    search = {"kind": "retrieval", "main": "nDCG@10", "values": {"nDCG@10": 51.0, "MAP": 40.0}}
    dev = {"kind": "scored pairs", "main": "Spearman", "values": {"Spearman": 86.0}}
    found = columns(
        {"cxc": {"all_pairs": 76.0, "mean": 75.0}, "tasks": {DEV: dev, "intents": labels, "manual": search}}
    )
    assert found == {DEV: 86.0, CXC: 76.0, "intents kNN": 90.0, "intents MAP": 50.0, "manual nDCG@10": 51.0}
    assert columns({"tasks": {DEV: labels}}) == {DEV: 90.0}
    assert columns({"tasks": {DEV: labels}}, "MAP") == {DEV: 50.0}
    assert columns({"Avg.": {"all": 81.0}, "sts": {}}) == {"STS": 81.0}
    assert columns({"mean of 2 tasks": {"all": 70.0}, "cxc": None}) == {"STS": 70.0}


def test_what_is_kept_counts_each_task_once():
    bare = {DEV: 86.0, CXC: 76.0, "intents kNN": 90.0, "intents MAP": 50.0, "manual nDCG@10": 51.0}
    now = {DEV: 88.0, CXC: 70.0, "intents kNN": 91.0, "intents MAP": 20.0, "manual nDCG@10": 48.0}
    assert gained(now, bare) == 2.0
    assert kept(now, bare) == -1.0
    assert kept({DEV: 1.0, CXC: 2.0}, {DEV: 1.0, CXC: 2.0}) is None
