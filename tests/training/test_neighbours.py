"""Pairs of sentences that are among each other's nearest: as plain loops find them, in blocks too."""

from __future__ import annotations

import numpy as np
import pytest

from cse.training import mining
from cse.training.mining import mutual_neighbours


def unit(count, seed=3, width=5):
    vectors = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def naive(vectors, nearest):
    cosine = vectors @ vectors.T
    of = [
        sorted((j for j in range(len(vectors)) if j != i), key=lambda j: -cosine[i, j])[:nearest]
        for i in range(len(vectors))
    ]
    return [[i, j] for i in range(len(vectors)) for j in range(i + 1, len(vectors)) if j in of[i] and i in of[j]]


@pytest.mark.parametrize("cells", [1 << 24, 120], ids=["one block", "blocks"])
@pytest.mark.parametrize("nearest", [1, 3, 36])
def test_pairs_are_mutual_neighbours(monkeypatch, cells, nearest):
    monkeypatch.setattr(mining, "CELLS", cells)
    vectors = unit(37)
    found = mutual_neighbours(vectors, nearest)
    assert found.tolist() == naive(vectors, nearest)
    assert len(found) > 5


def test_more_neighbours_than_sentences_and_a_single_sentence():
    assert mutual_neighbours(unit(3), 10).tolist() == [[0, 1], [0, 2], [1, 2]]
    assert mutual_neighbours(unit(1), 10).shape == (0, 2)
