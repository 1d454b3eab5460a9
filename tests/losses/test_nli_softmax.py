"""SBERT's classification of sentence pairs."""

from __future__ import annotations

import math

import pytest
import torch

from cse.losses.nli_softmax import nli_softmax, pair_features

ROWS, WIDTH = 6, 4


@pytest.fixture
def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return tuple(torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))


def test_features_are_both_vectors_and_their_absolute_difference(pairs):
    features = pair_features(*pairs)
    assert features.shape == (ROWS, 3 * WIDTH)
    u, v = (tensor.tolist() for tensor in pairs)
    for row in range(ROWS):
        expected = u[row] + v[row] + [abs(a - b) for a, b in zip(u[row], v[row], strict=True)]
        assert features[row].tolist() == expected


def test_loss_of_the_classifier(pairs):
    generator = torch.Generator().manual_seed(10)
    weight = torch.randn(3, 3 * WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2, 0, 1])
    features = pair_features(*pairs)
    expected = 0.0
    for row, label in zip(features.tolist(), labels.tolist(), strict=True):
        scores = [sum(w * x for w, x in zip(line, row, strict=True)) for line in weight.tolist()]
        expected -= math.log(math.exp(scores[label]) / sum(math.exp(score) for score in scores)) / ROWS
    assert nli_softmax(features @ weight.T, labels).item() == pytest.approx(expected, abs=1e-10)
