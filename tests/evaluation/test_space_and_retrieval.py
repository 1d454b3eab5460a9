"""Alignment, uniformity and retrieval against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from cse.data.tasks.kinds import ScoredPairs
from cse.errors import CseError
from cse.evaluation import retrieval, space
from cse.evaluation.measures import Vectors
from cse.evaluation.retrieval import score_retrieval
from cse.evaluation.space import ALL, alignment, densities, uniformity
from cse.runtime.encode import unit_rows
from tests.evaluation.test_sts import FakeEncoder


def pairs(rows, name="STS-B") -> ScoredPairs:
    first, second, score = zip(*rows, strict=True)
    return ScoredPairs(name, list(first), list(second), np.array(score, dtype=float), ["one"] * len(score))


def vectors_of(*tasks) -> Vectors:
    return Vectors(FakeEncoder(), [text for task in tasks for text in (*task.sentence1, *task.sentence2)])


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_uniformity_is_the_loop_over_pairs(monkeypatch, block):
    monkeypatch.setattr(space, "_BLOCK", block)
    rows = np.random.default_rng(0).normal(size=(11, 5)).astype(np.float32)
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    kernel = [np.exp(-2 * ((unit[i] - unit[j]) ** 2).sum()) for i in range(11) for j in range(i)]
    assert uniformity(rows) == pytest.approx(np.log(np.mean(kernel)), abs=1e-12)


def test_alignment_is_the_mean_squared_distance():
    a, b = np.random.default_rng(0).normal(size=(2, 7, 4))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
    assert alignment(a, b) == pytest.approx(np.mean([((x - y) ** 2).sum() for x, y in zip(*unit, strict=True)]))


def test_a_zero_vector_has_no_direction():
    with pytest.raises(CseError, match="uniformity: sentence 2 of 3 has a zero vector"):
        uniformity(np.array([[1.0, 0], [0, 0], [0, 1]]))
    with pytest.raises(CseError, match="needs at least 2 sentences, found 1"):
        uniformity(np.ones((1, 3)))


ROWS = [
    ("a", "b", 5), ("c", "d", 5), ("a", "e", 5), ("f", "f", 5), ("g", "h", 2.5), ("i", "a", 1), ("k", "l", 5),
    ("b", "m", 0),
]  # fmt: skip


@pytest.mark.parametrize("block", [2, 1000])
@pytest.mark.parametrize("dedup", [True, False])
def test_recall_is_the_loop_over_queries(monkeypatch, dedup, block):
    monkeypatch.setattr(retrieval, "_BLOCK", block)
    task = pairs(ROWS)
    vectors = vectors_of(task)
    found = score_retrieval(vectors, task, dedup=dedup)
    slots = task.sentence1 + task.sentence2
    pool = list(dict.fromkeys(slots)) if dedup else slots
    unit = unit_rows(vectors.of(pool).astype(np.float64))
    ranks = []
    for start, other in ((0, 8), (8, 0)):
        for row in np.flatnonzero(task.score == 5):
            query, partner = start + row, other + row
            if dedup:
                query, partner = pool.index(slots[query]), pool.index(slots[partner])
            if query == partner:
                continue
            cosines = {i: unit[query] @ unit[i] for i in range(len(pool)) if i != query}
            ranks.append(1 + sum(value > cosines[partner] for value in cosines.values()))
    assert [example.rank for example in found.examples] == ranks
    shares = {cut: 100 * np.mean([rank <= cut for rank in ranks]) for cut in (1, 3, 5)}
    assert found.values == {f"recall@{cut}": pytest.approx(share) for cut, share in shares.items()}
    assert (found.facts["queries"], found.facts["candidates"]) == (8, 11) if dedup else (10, 15)
    for example in found.examples:
        cosines = [cosine for _, cosine in example.nearest]
        assert cosines == sorted(cosines, reverse=True)
        assert len(cosines) == 5
        if example.rank <= 5 and dedup:
            assert example.nearest[example.rank - 1][0] == example.partner
        if dedup:
            assert example.query not in dict(example.nearest)


# ---- densities ------------------------------------------------------------------------------------------------------


def reference(cosine, grid):
    """Gaussian kernels with Scott's bandwidth, in float64."""
    width = cosine.std(ddof=1) * len(cosine) ** (-1 / 5)
    kernels = np.exp(-0.5 * ((grid[:, None] - cosine[None]) / width) ** 2) / np.sqrt(2 * np.pi)
    return kernels.sum(axis=1) / (len(cosine) * width)


def test_each_curve_is_the_kernel_estimate_of_its_group():
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, 200)
    cosine = np.tanh(gold / 5 + rng.normal(0, 0.2, 200))
    curves = densities(cosine, gold)
    assert [curve.group for curve in curves] == [ALL, "[0, 1)", "[1, 2)", "[2, 3)", "[3, 4)", "[4, 5]"]
    members = [np.ones(200, bool), *(np.floor(gold) == group for group in range(5))]
    for curve, chosen in zip(curves, members, strict=True):
        assert curve.pairs == chosen.sum()
        np.testing.assert_allclose(curve.density, reference(cosine[chosen], curve.cosine), rtol=1e-9)
    assert curves[0].cosine[-1] == 1.0


def test_a_group_without_two_different_cosines_has_no_curve():
    gold = np.array([0.5, 0.6, 1.5, 4.5, 4.6])
    cosine = np.array([0.1, 0.3, 0.5, 0.8, 0.8])
    assert [curve.group for curve in densities(cosine, gold)] == [ALL, "[0, 1)"]
