"""Padding and large scores in IS-BERT's estimate of mutual information; its value: ``tests/training/test_terms``."""

from __future__ import annotations

import math

import pytest
import torch

from cse.losses.mutual_information import local_global_information

LENGTHS = (4, 1, 3, 2)
LONGEST, WIDTH = 5, 3


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    local = torch.randn(len(LENGTHS), LONGEST, WIDTH, generator=generator, dtype=torch.float64)
    sentences = torch.randn(len(LENGTHS), WIDTH, generator=generator, dtype=torch.float64)
    return local, sentences, (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).long()


@pytest.mark.parametrize("score", [21.0, 500.0])
def test_large_scores_are_exact(score):
    """Torch's softplus returns its argument above 20; two tokens that are all wrong cost a little more than that."""
    local = torch.eye(2, dtype=torch.float64)[:, None, :]
    sentences = torch.tensor([[-score, score], [score, -score]], dtype=torch.float64)
    found = local_global_information(local, sentences, torch.ones(2, 1)).item()
    assert found - 2 * score == pytest.approx(2 * math.log1p(math.exp(-score)), abs=1e-12)


def test_what_stands_at_padding_does_not_matter(batch):
    local, sentences, mask = batch
    spoiled = local.masked_fill(mask[:, :, None] == 0, float("nan")).requires_grad_()
    loss = local_global_information(spoiled, sentences, mask)
    assert loss.item() == local_global_information(local, sentences, mask).item()
    loss.backward()
    assert torch.equal(spoiled.grad[mask == 0], torch.zeros_like(spoiled.grad[mask == 0]))
    assert spoiled.grad[mask == 1].abs().min() > 0


def test_a_row_of_padding_alone_is_no_sentence(batch):
    local, sentences, mask = batch
    mask[2] = 0
    sentences[2] = float("nan")  # the mean of no tokens
    rest = [0, 1, 3]
    sentences.requires_grad_()
    loss = local_global_information(local, sentences, mask)
    assert loss.item() == local_global_information(local[rest], sentences[rest], mask[rest]).item()
    loss.backward()
    assert torch.isfinite(sentences.grad).all()
