"""The loss of masked language modelling; its weight and its masks: see ``tests/training``."""

from __future__ import annotations

import math

import pytest
import torch

from cse.losses.masked_lm import masked_lm

CHOSEN, VOCABULARY = 7, 11


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(CHOSEN, VOCABULARY, generator=generator, dtype=torch.float64)
    return logits, torch.randint(VOCABULARY, (CHOSEN,), generator=generator)


@pytest.mark.parametrize("chosen", [0, 1, CHOSEN])
def test_cross_entropy_of_the_chosen_tokens(batch, chosen):
    logits, labels = (tensor[:chosen] for tensor in batch)
    expected = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        expected -= math.log(math.exp(row[label]) / sum(math.exp(score) for score in row))
    assert masked_lm(logits, labels).item() == pytest.approx(expected, abs=1e-10)
