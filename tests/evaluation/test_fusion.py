"""Words and vectors together, against plain Python and LanceDB's own reranker."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cse.evaluation.fusion import fuse, lend, search


def reference(cosine, bm25, depth):
    """Half of each, one document after the other."""
    order = sorted(range(len(cosine)), key=lambda n: (-cosine[n], n))
    near = [n for n in order if cosine[n] > -np.inf][:depth]
    worded = sorted((n for n in range(len(bm25)) if bm25[n] > 0), key=lambda n: (-bm25[n], n))[:depth]
    scores = []
    for n in range(len(cosine)):
        score = 0.0
        for found, values in ((near, cosine), (worded, bm25)):
            least, most = (min(values[m] for m in found), max(values[m] for m in found)) if found else (0, 1)
            score += 0.5 * float(values[n] - least) / float(most - least) if n in found else 0.0
        scores.append(score if n in near or n in worded else -1.0)
    return scores


def drawn(seed: int, count: int = 40):
    rng = np.random.default_rng(seed)
    cosine, bm25 = rng.normal(size=count).astype(np.float32), rng.normal(size=count).astype(np.float32)
    return cosine, np.maximum(bm25, 0)


@pytest.mark.parametrize("depth", [5, 200])
def test_half_of_each_among_the_best_of_either(depth):
    cosine, bm25 = drawn(0)
    cosine[3] = -np.inf
    bm25[3] = 0
    found = fuse(cosine, bm25, depth)
    assert found == pytest.approx(reference(cosine.astype(float), bm25.astype(float), depth), abs=1e-12)
    assert found[3] == -1 and (depth < 200 or (found >= 0).sum() == len(found) - 1)
    assert not np.array_equal(np.argsort(-found), np.argsort(-cosine)), "words change the order"


def test_without_a_common_word_vectors_rank():
    cosine, bm25 = drawn(1)
    found = fuse(cosine, np.zeros_like(bm25), 10)
    assert np.argsort(-found, kind="stable")[:10].tolist() == np.argsort(-cosine)[:10].tolist()


@pytest.mark.parametrize("case", ["drawn", "one word", "equal cosines"])
def test_as_lancedb_ranks(case):
    query = pytest.importorskip("lancedb.query")
    rerankers = pytest.importorskip("lancedb.rerankers")
    cosine, bm25 = drawn(2)
    if case == "one word":
        bm25 = np.where(np.arange(len(bm25)) == 7, np.float32(3), np.float32(0))
    if case == "equal cosines":
        cosine[:] = 0.5
    near = np.argsort(-cosine, kind="stable")[:10]
    worded = np.argsort(-bm25, kind="stable")[:10]
    worded = worded[bm25[worded] > 0]

    def table(places, name, values):
        return pa.table({"_rowid": pa.array(places, pa.uint64()), name: pa.array(values[places], pa.float32())})

    merged = query.LanceHybridQueryBuilder._combine_hybrid_results(
        table(worded, "_score", bm25),
        table(near, "_distance", 1 - cosine),
        "score",
        "",
        rerankers.LinearCombinationReranker(0.5, return_score="all"),
        len(cosine),
        True,
    )
    theirs = dict(zip(merged["_rowid"].to_pylist(), merged["_relevance_score"].to_pylist(), strict=True))
    ours = fuse(cosine, bm25, 10)
    assert set(theirs) == set(np.flatnonzero(ours >= 0).tolist())
    assert [ours[place] for place in theirs] == pytest.approx(list(theirs.values()), abs=1e-6)


# ---- what is alike ------------------------------------------------------------------------------------------------


def unit_vectors(seed: int, count: int = 40) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def lent(scores, vectors):
    """Three tenths of a score are the mean of the eight nearest, one document after the other."""
    found = []
    for n, own in enumerate(scores):
        others = sorted((m for m in range(len(scores)) if m != n), key=lambda m: -float(vectors[n] @ vectors[m]))[:8]
        found.append(0.7 * own + 0.3 * sum(scores[m] for m in others) / len(others))
    return found


@pytest.mark.parametrize("rows", [7, 1000])
@pytest.mark.parametrize("count", [2, 5, 40])
def test_documents_that_are_alike_lend_each_other_their_scores(monkeypatch, count, rows):
    monkeypatch.setattr("cse.evaluation.fusion._ROWS", rows)
    scores, vectors = np.sort(np.random.default_rng(3).random(count))[::-1], unit_vectors(4, count)
    assert lend(scores, vectors) == pytest.approx(lent(scores, vectors))


def test_a_document_alone_keeps_its_score():
    assert lend(np.array([0.5]), unit_vectors(0, 1)).tolist() == [0.5]
    assert not len(lend(np.array([]), unit_vectors(0, 0)))


def test_a_search_lends_among_the_documents_that_are_found():
    (cosine, bm25), vectors = drawn(5), unit_vectors(6)
    fused, found = fuse(cosine, bm25, 10), search(cosine, bm25, vectors, 10)
    best = np.argsort(-fused, kind="stable")[:10]
    assert found[best] == pytest.approx(lent(fused[best], vectors[best]))
    assert (found >= 0).sum() == 10 < (fused >= 0).sum(), "of those that either finds, the best"


def test_among_equal_documents_one_near_the_others_wins():
    """Two documents fit a query alike; one has neighbours that fit it too."""
    fits = np.array([1.0, 1.0, *[0.9] * 8, *[0.1] * 8])
    vectors = np.zeros((18, 3), np.float32)
    vectors[[0, *range(10, 18)], 0] = 1
    vectors[[1, *range(2, 10)], 1] = 1
    one, other = lend(fits, vectors)[:2]
    assert other - one == pytest.approx(0.3 * 0.8)
