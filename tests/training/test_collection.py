"""What a teacher thinks of a collection, against loops by hand."""

import tracemalloc
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from cse.losses.collection import NO_DOCUMENT
from cse.runtime.kept_vectors import empty
from cse.search.words import Words
from cse.training.collection import QueryPairs, pairs_of, teach
from tests.parts import refusal

DOCUMENTS = ["cats sleep", "dogs bark at cats", "a red bus", "rain", "cats and dogs play in the rain"]
QUERIES = ["cats", "bus", "rain on dogs", "nothing of it"]


def unit(rows: int, seed: int, width: int = 8) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def taught(candidates=3, words=0.5, most=9):
    stands_in = np.array([True, True, False, False])
    pairs = QueryPairs(QUERIES, DOCUMENTS, np.array([1, 2, 4, 0]), stands_in, np.zeros(4, int))
    fixed = {"CANDIDATES": candidates, "OWN_SHARE": 0.25, "MOST_DOCUMENTS": most}
    with mock.patch.multiple("cse.training.collection", **fixed):
        return pairs, teach(pairs, unit(4, 1), unit(5, 2), words)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(("words", "candidates"), [(0.0, 3), (0.5, 1), (0.5, 3), (0.5, 200)])
def test_shares_are_a_softmax_of_standardised_scores_over_the_best(monkeypatch, words, candidates, blocks):
    if blocks:
        for module in ("cse.training.collection", "cse.search.words"):
            monkeypatch.setattr(f"{module}.DOCUMENTS", 2)
        monkeypatch.setattr("cse.training.collection._BLOCK", 1)
    pairs, targets = taught(words=words, candidates=candidates)
    assert targets.own.tolist() == [1, 2, NO_DOCUMENT, NO_DOCUMENT], "the label of judged pairs is a candidate"
    lexical = np.stack(list(Words(DOCUMENTS).scores(QUERIES))).astype(np.float64)
    for row, own in enumerate(pairs.place):
        cosine, bm25 = (unit(4, 1)[row] @ unit(5, 2).T).astype(np.float64), lexical[row]
        score = sum(
            weight * (each - each.mean()) / (each.std() + 1e-6) for weight, each in ((1.0, cosine), (words, bm25))
        )
        allowed = [place for place in range(5) if place != own or not pairs.stands_in[row]]
        best = sorted(allowed, key=lambda place: -score[place])[: min(candidates, 4)]
        expected, found = np.zeros(5), np.zeros(5)
        expected[best] = np.exp(score[best] / 0.5) / np.exp(score[best] / 0.5).sum()
        if not pairs.stands_in[row]:
            expected = 0.75 * expected + 0.25 * np.eye(5)[own]
        np.add.at(found, targets.place[row], targets.share[row])
        assert found == pytest.approx(expected, abs=1e-5)
    sample = taught(most=4)[1].sample
    assert not len(targets.sample) and len(set(sample.tolist())) == 2, "more documents than a step ranks"


def test_memory_holds_a_block_of_a_large_collection(monkeypatch):
    """40,000 documents in a file: a peak below a tenth of their vectors."""
    for name, value in {"DOCUMENTS": 500, "_BLOCK": 20_000, "CANDIDATES": 10, "MOST_DOCUMENTS": 2000}.items():
        monkeypatch.setattr(f"cse.training.collection.{name}", value)
    rng = np.random.default_rng(0)
    vectors = empty((40_000, 96))
    vectors[...] = rng.normal(size=vectors.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = QueryPairs(["a"] * 30, range(40_000), rng.integers(0, 40_000, 30), np.ones(30, bool), np.zeros(30, int))
    queries = np.array(vectors[pairs.place] + vectors[:30])
    tracemalloc.start()
    targets = teach(pairs, queries, vectors, words=0.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < vectors.nbytes / 10
    assert len(targets.sample) == 1000


def test_sources_share_one_collection_or_one_that_is_given():
    first = pa.table({"sent0": ["a", "b"], "sent1": ["x", "y"]})
    second = pa.table({"sent0": ["c", "a"], "sent1": ["z", "x"]})
    pairs = pairs_of([(first, True), (second, False)])
    assert (pairs.queries, pairs.documents) == (["a", "b", "c", "a"], ["x", "y", "z"])
    assert (pairs.place.tolist(), pairs.stands_in.tolist()) == ([0, 1, 2, 0], [True, True, False, False])
    assert pairs.source.tolist() == [0, 0, 1, 1]
    assert pairs.times([3.0]).tolist() == [1, 1, 3, 3], "three rows of the second source for each of the first"
    assert pairs.times([0.2]).tolist() == [1, 1, 1, 1], "and each row once, at least"
    some = pairs.only(np.array([0, 3]))
    assert (some.queries, some.documents, some.place.tolist()) == (["a", "a"], pairs.documents, [0, 0])
    pairs = pairs_of([(first, True)], ["w", "y", "z", "x"])
    assert (list(pairs.documents), pairs.place.tolist()) == (["w", "y", "z", "x"], [3, 1])
    said = refusal(pairs_of, [(first, True)], ["y", "z"])
    assert said.startswith("post.kind: 'x' is in a row and not among the documents")
