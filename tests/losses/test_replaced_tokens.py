"""Replaced-token detection: its three normalisations, and padding."""

from __future__ import annotations

import math

import pytest
import torch

from cse.losses.replaced_tokens import replaced_tokens

LENGTHS = (5, 2, 4, 0)  # the last row is padding alone
LONGEST = 6
NORMALIZE = ("positions", "tokens", "sum")


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, labels (some at padding, which must not count) and mask."""
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(len(LENGTHS), LONGEST, 2, generator=generator, dtype=torch.float64)
    replaced = torch.randint(2, (len(LENGTHS), LONGEST), generator=generator)
    mask = (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).long()
    assert 0 < (replaced * mask).sum() < mask.sum()
    assert (replaced * (1 - mask)).sum() > 0
    return logits, replaced, mask


def reference(logits, replaced, *, normalize) -> float:
    everywhere, real, positions = 0.0, 0.0, 0
    for sentence, labels, length in zip(logits, replaced, LENGTHS, strict=True):
        for place, (original_score, replaced_score) in enumerate(sentence):
            is_real = place < length
            label = labels[place] if is_real else 0
            odds = math.exp(replaced_score) + math.exp(original_score)
            loss = -math.log(math.exp(replaced_score if label == 1 else original_score) / odds)
            everywhere += loss
            real += loss if is_real else 0.0
            positions += 1
    if normalize == "positions":
        return everywhere / positions
    if normalize == "tokens":
        return real / sum(LENGTHS)
    return real / sum(length > 0 for length in LENGTHS)


def mean(*batch, normalize) -> torch.Tensor:
    total, count = replaced_tokens(*batch, normalize=normalize)
    return total / count.clamp(min=1)


@pytest.mark.parametrize("normalize", NORMALIZE)
def test_value(batch, normalize):
    logits, replaced, mask = batch
    expected = reference(logits.tolist(), replaced.tolist(), normalize=normalize)
    assert mean(*batch, normalize=normalize).item() == pytest.approx(expected, abs=1e-10)
    truths = mean(logits, replaced.bool(), mask.bool(), normalize=normalize)
    assert truths.item() == pytest.approx(expected, abs=1e-10)
