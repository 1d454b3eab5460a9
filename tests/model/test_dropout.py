"""The cheap dropout has the distribution of torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cse.model.attention import prefix_attention
from cse.model.dropout import Dropout, dropout, replace_dropout


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_scale_and_mean(p, dtype):
    torch.manual_seed(0)
    found = dropout(torch.ones(1001, 997, dtype=dtype), p)
    zero = (found == 0).float()
    assert zero.mean().item() == pytest.approx(p, abs=0.002)
    assert found.max().item() == pytest.approx(1 / (1 - p), rel=1e-2)
    assert found.float().mean().item() == pytest.approx(1.0, abs=0.005)
    # neighbours share 64 random bits: they must be independent all the same
    pairs = (zero[:, :-1] * zero[:, 1:]).mean().item()
    assert pairs == pytest.approx(p * p, abs=0.002)


def test_the_seed_fixes_the_mask_and_the_gradient_follows_it():
    values = torch.ones(50, 7, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(values, 0.4)
    torch.manual_seed(3)
    again = dropout(values, 0.4)
    assert torch.equal(first, again)
    first.sum().backward()
    assert torch.equal(values.grad, first.detach())


def test_evaluation_and_probability_zero_change_nothing():
    values = torch.randn(5, 5)
    assert torch.equal(Dropout(0.3).eval()(values), values)
    assert torch.equal(dropout(values, 0.0), values)


def test_every_dropout_of_a_backbone_is_replaced(bert):
    kinds = [type(module) for module in bert.model.modules()]
    assert kinds.count(Dropout) == 1 + 3 * bert.layers
    assert kinds.count(nn.Dropout) == 0
    assert replace_dropout(nn.Sequential(nn.Dropout(0.2), nn.Sequential(nn.Dropout(0.1)))) == 2


def test_attention_with_dropout_has_the_mean_of_attention_without():
    """Averaged over many masks, attention with dropout is attention; each single draw is not."""
    torch.manual_seed(1)
    query, key, value = (torch.randn(1, 2, 3, 4) for _ in range(3))
    mask = torch.tensor([[[[True, True, False]]]])
    plain, _ = prefix_attention(nn.Identity(), query, key, value, mask, dropout=0.0, scaling=0.5)
    many = [t.expand(4000, -1, -1, -1) for t in (query, key, value)]
    drawn, _ = prefix_attention(nn.Identity(), *many, mask, dropout=0.2, scaling=0.5)
    assert (drawn[0] - plain[0]).abs().max() > 0.05
    torch.testing.assert_close(drawn.mean(dim=0), plain[0], atol=0.05, rtol=0)
