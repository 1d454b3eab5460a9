"""Contrastive Tension: one positive among the negatives of its group, by dot product."""

from __future__ import annotations

import math

import pytest
import torch

from cse.losses.contrastive_tension import contrastive_tension

GROUP, GROUPS, WIDTH = 4, 3, 5


@pytest.fixture
def embeddings() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(GROUP * GROUPS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))


def reference(first, second) -> float:
    losses = []
    for row in range(len(second)):
        start = row - row % GROUP
        score = sum(a * b for a, b in zip(first[start], second[row], strict=True))
        probability = 1.0 / (1.0 + math.exp(-score))
        losses.append(-math.log(probability if row == start else 1.0 - probability))
    assert len(losses) == GROUP * GROUPS
    return sum(losses) / len(losses)


def test_value(embeddings):
    first, second = embeddings
    expected = reference(first.tolist(), second.tolist())
    assert contrastive_tension(first, second, group=GROUP).item() == pytest.approx(expected, abs=1e-10)


def test_large_scores_stay_finite(embeddings):
    first, second = (1e3 * tensor for tensor in embeddings)
    assert torch.isfinite(contrastive_tension(first, second, group=GROUP))
