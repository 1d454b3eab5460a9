"""SG-OPT: layers of a frozen clone as positives, layers of other sentences as negatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cse.losses.self_guided import self_guided, squared_distance

ROWS, LAYERS, WIDTH = 4, 3, 5


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    anchor = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return anchor, torch.randn(LAYERS, ROWS, WIDTH, generator=generator, dtype=torch.float64)


def phi(a, b, temperature) -> float:
    cos = sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return math.exp(cos / temperature)


def reference(anchor, views, *, temperature) -> float:
    losses = []
    for i in range(ROWS):
        others = [(n, m) for n in range(LAYERS) for m in range(ROWS) if m != i]
        assert len(others) == LAYERS * (ROWS - 1)
        negatives = sum(phi(anchor[i], views[n][m], temperature) for n, m in others)
        for k in range(LAYERS):
            positive = phi(anchor[i], views[k][i], temperature)
            losses.append(-math.log(positive / (positive + negatives)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.01, 0.5])
def test_value(batch, temperature):
    anchor, views = batch
    expected = reference(anchor.tolist(), views.tolist(), temperature=temperature)
    assert self_guided(anchor, views, temperature=temperature).item() == pytest.approx(expected, abs=1e-10)


def test_a_batch_of_one_sentence_has_no_loss_and_no_gradient(batch):
    anchor, views = batch[0][:1].clone().requires_grad_(), batch[1][:, :1].clone().requires_grad_()
    loss = self_guided(anchor, views, temperature=0.01)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(anchor.grad, torch.zeros_like(anchor))
    assert torch.equal(views.grad, torch.zeros_like(views))


def test_squared_distance_sums_over_all_tensors():
    generator = torch.Generator().manual_seed(8)
    shapes = [(3, 2), (4,), ()]
    weights, initial = ([torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes] for _ in range(2))
    expected = 0.0
    for now, then in zip(weights, initial, strict=True):
        for a, b in zip(now.flatten().tolist(), then.flatten().tolist(), strict=True):
            expected += (a - b) ** 2
    assert squared_distance(weights, initial).item() == pytest.approx(expected, abs=1e-10)


def test_squared_distance_starts_at_zero_and_counts_nothing_as_zero():
    weights = [torch.ones(2, 2, requires_grad=True)]
    distance = squared_distance(weights, [torch.ones(2, 2)])
    distance.backward()
    assert distance.item() == 0.0
    assert np.array_equal(weights[0].grad.numpy(), np.zeros((2, 2)))
    assert squared_distance([], []).item() == 0.0
