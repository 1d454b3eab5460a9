"""NT-Xent with a queue, and SimCLR's form, against loops in numpy float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cse.objectives.cosine import cosines
from cse.objectives.nt_xent import nt_xent, nt_xent_two_views

ROWS, WIDTH, QUEUE = 5, 4, 3


@pytest.fixture
def vectors() -> tuple[torch.Tensor, ...]:
    """Anchors, positives, hard negatives and a queue."""
    generator = torch.Generator().manual_seed(3)
    sizes = (ROWS, ROWS, ROWS, QUEUE)
    return tuple(torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64) for rows in sizes)


def cos(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def reference_with_queue(z1, z2, z3, queue, *, temperature, weight) -> float:
    total = 0.0
    for i in range(ROWS):
        denominator = 0.0
        for j in range(ROWS):
            denominator += math.exp(cos(z1[i], z2[j]) / temperature)
            if z3 is not None:
                denominator += math.exp(cos(z1[i], z3[j]) / temperature + (weight if i == j else 0.0))
        for q in range(QUEUE):
            denominator += math.exp(cos(z1[i], queue[q]) / temperature)
        total -= math.log(math.exp(cos(z1[i], z2[i]) / temperature) / denominator)
    return total / ROWS


def reference_two_views(z1, z2, *, temperature) -> float:
    rows = [*z1, *z2]
    total = 0.0
    for i in range(2 * len(z1)):
        partner = i + len(z1) if i < len(z1) else i - len(z1)
        candidates = [j for j in range(2 * len(z1)) if j != i]
        assert len(candidates) == 2 * len(z1) - 1
        denominator = sum(math.exp(cos(rows[i], rows[j]) / temperature) for j in candidates)
        total -= math.log(math.exp(cos(rows[i], rows[partner]) / temperature) / denominator)
    return total / (2 * len(z1))


@pytest.mark.parametrize("triplets", [False, True])
def test_queue_joins_the_denominator(vectors, triplets):
    z1, z2, z3, queue = vectors
    found = nt_xent(
        cosines(z1, z2),
        cosines(z1, z3) if triplets else None,
        temperature=0.1,
        hard_negative_weight=0.6,
        queue_AQ=cosines(z1, queue),
    )
    arrays = (z1.numpy(), z2.numpy(), z3.numpy() if triplets else None, queue.numpy())
    assert found.item() == pytest.approx(reference_with_queue(*arrays, temperature=0.1, weight=0.6), abs=1e-10)


def test_queue_raises_the_loss_and_an_empty_one_changes_nothing(vectors):
    z1, z2, _, queue = vectors
    plain = nt_xent(cosines(z1, z2), temperature=0.05)
    assert nt_xent(cosines(z1, z2), temperature=0.05, queue_AQ=cosines(z1, queue)) > plain
    assert torch.equal(nt_xent(cosines(z1, z2), temperature=0.05, queue_AQ=cosines(z1, queue[:0])), plain)


def test_gradient_with_a_queue_equals_finite_differences(vectors):
    def loss(z1, z2, queue):
        return nt_xent(cosines(z1, z2), temperature=0.2, queue_AQ=cosines(z1, queue))

    z1, z2, _, queue = (vector.clone().requires_grad_() for vector in vectors)
    assert torch.autograd.gradcheck(loss, (z1, z2, queue))


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_two_views(vectors, temperature):
    z1, z2, *_ = vectors
    expected = reference_two_views(z1.numpy(), z2.numpy(), temperature=temperature)
    assert nt_xent_two_views(z1, z2, temperature=temperature).item() == pytest.approx(expected, abs=1e-10)


def test_gradient_of_two_views_equals_finite_differences(vectors):
    z1, z2, *_ = (vector.clone().requires_grad_() for vector in vectors)
    assert torch.autograd.gradcheck(lambda a, b: nt_xent_two_views(a, b, temperature=0.2), (z1, z2))


def test_two_views_are_symmetric_and_one_row_alone_has_no_loss(vectors):
    z1, z2, *_ = vectors
    forth, back = nt_xent_two_views(z1, z2, temperature=0.05), nt_xent_two_views(z2, z1, temperature=0.05)
    assert forth.item() == pytest.approx(back.item(), rel=1e-12)
    alone = z1[:1].clone().requires_grad_()
    loss = nt_xent_two_views(alone, z2[:1], temperature=0.05)
    loss.backward()
    assert loss.item() == 0.0
    assert np.array_equal(alone.grad.numpy(), np.zeros((1, WIDTH)))
