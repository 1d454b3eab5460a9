"""The loss of masked language modelling and its sinking weight."""

from __future__ import annotations

import math

import pytest
import torch

from cse.objectives.masked_lm import decayed_weight, masked_lm

CHOSEN, VOCABULARY = 7, 11


def reference(logits, labels) -> float:
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        total -= math.log(math.exp(row[label]) / sum(math.exp(score) for score in row))
    return total / len(labels)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(CHOSEN, VOCABULARY, generator=generator, dtype=torch.float64)
    return logits, torch.randint(VOCABULARY, (CHOSEN,), generator=generator)


@pytest.mark.parametrize("chosen", [1, CHOSEN])
def test_mean_cross_entropy_of_the_chosen_tokens(batch, chosen):
    logits, labels = (tensor[:chosen] for tensor in batch)
    assert masked_lm(logits, labels).item() == pytest.approx(reference(logits.tolist(), labels.tolist()), abs=1e-10)


def test_gradient_equals_finite_differences(batch):
    logits, labels = batch
    assert torch.autograd.gradcheck(lambda x: masked_lm(x, labels), (logits.requires_grad_(),))


def test_nothing_chosen_is_zero_with_zero_gradient():
    hidden = torch.randn(4, 3, requires_grad=True)
    loss = masked_lm(hidden[:0] @ torch.randn(3, VOCABULARY), torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(hidden.grad, torch.zeros(4, 3))


def test_weight_sinks_with_a_real_valued_exponent():
    schedule = {"weight": 0.1, "rate": 0.95, "every": 100}
    assert decayed_weight(0, **schedule) == 0.1
    assert decayed_weight(100, **schedule) == pytest.approx(0.095, rel=1e-12)
    assert decayed_weight(300, **schedule) == pytest.approx(0.1 * 0.95 * 0.95 * 0.95, rel=1e-12)
    assert decayed_weight(50, **schedule) == pytest.approx(0.1 * math.sqrt(0.95), rel=1e-12)
    assert decayed_weight(1, **schedule) < 0.1


def test_rate_one_keeps_the_weight():
    assert decayed_weight(12345, weight=0.1, rate=1.0, every=100) == 0.1
