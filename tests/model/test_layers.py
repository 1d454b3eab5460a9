"""Layers beside numpy: the cheap dropout has the distribution of torch's, a read-out by convolutions, unigram draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cse.model.dropout import Dropout, dropout, replace_dropout
from cse.model.mlm_head import UnigramGenerator
from cse.model.passes import prefix_attention
from cse.model.pooling import TokenCnn


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


def test_compiled_it_draws_the_same_masks():
    def twice(values):
        return dropout(values, 0.4) + 2 * dropout(values.T, 0.4).T

    drawn = []
    for draw in (twice, torch.compile(twice, backend="aot_eager")):
        torch.manual_seed(3)
        drawn.append(draw(torch.ones(3, 40)))
    assert torch.equal(*drawn) and len(drawn[0].unique()) == 4


def test_every_dropout_of_a_backbone_is_replaced(bert):
    kinds = [type(module) for module in bert.model.modules()]
    assert kinds.count(Dropout) == 1 + 3 * bert.layers
    assert kinds.count(nn.Dropout) == 0
    assert replace_dropout(nn.Sequential(nn.Dropout(0.2), nn.Sequential(nn.Dropout(0.1)))) == 2


def attention_inputs(dtype):
    """Queries, keys and values ``(2, 3, 5, 4)``, a mask over 2 prompt columns and 5 tokens, and prompts."""
    torch.manual_seed(2)
    qkv = torch.randn(3, 2, 3, 5, 4, dtype=dtype)
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[1, ..., -2:] = False
    shared, per_row = torch.randn(2, 3, 2, 4, dtype=torch.float64), torch.randn(2, 2, 3, 2, 4, dtype=torch.float64)
    return qkv, mask, {"shared": shared, "per row": per_row}


@pytest.mark.parametrize("prompt", ["shared", "per row"])
@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("probability", [0.0, 0.2])
@pytest.mark.parametrize("training", [True, False])
def test_both_ways_to_attend_equal_the_formula(monkeypatch, prompt, scaling, probability, training):
    """In training and at inference, up to the draw of the mask: ``softmax(Q [Pk; K]^T scale + mask) [Pv; V]``."""
    drawn = []
    monkeypatch.setattr("cse.model.passes.cheap_dropout", lambda share, p: drawn.append(p) or 2 * share)
    (query, key, value), mask, prompts = attention_inputs(torch.float64)
    given = {"dropout": probability} if probability else {}
    with torch.set_grad_enabled(training):
        found, weights = prefix_attention(
            nn.Identity(), query, key, value, mask, scaling=scaling, prefix=tuple(prompts[prompt]), **given
        )
    expected = torch.zeros(2, 5, 3, 4, dtype=torch.float64)
    for b in range(2):
        for h in range(3):
            own_key, own_value = (t[h] if prompt == "shared" else t[b, h] for t in prompts[prompt])
            keys, values = torch.cat([own_key, key[b, h]]), torch.cat([own_value, value[b, h]])
            scores = query[b, h] @ keys.T * (0.5 if scaling is None else scaling)
            share = scores.exp() * mask[b, 0, 0]
            expected[b, :, h] = share / share.sum(dim=1, keepdim=True) @ values
    assert weights is None
    assert drawn == ([probability] if training or probability else [])
    torch.testing.assert_close(found, 2 * expected if drawn else expected, atol=1e-12, rtol=0)


def test_attention_of_half_precision_takes_a_float32_prompt():
    (query, key, value), mask, prompts = attention_inputs(torch.bfloat16)
    block = tuple(prompts["shared"].float())
    found, _ = prefix_attention(nn.Identity(), query, key, value, mask, dropout=0.2, prefix=block)
    assert found.dtype == torch.bfloat16
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("width", [12, 32])
def test_convolutions_over_tokens(width):
    torch.manual_seed(0)
    cnn = TokenCnn(width).double()
    tokens_BLD = torch.randn(3, 7, width, dtype=torch.float64)
    mask_BL = (torch.arange(7) < torch.tensor([[7], [4], [2]])).long()
    found = cnn(tokens_BLD, mask_BL).detach().numpy()
    assert found.shape == (3, 7, width)
    tokens = tokens_BLD.numpy() * mask_BL.numpy()[..., None]
    start = 0
    for window, size in zip(cnn.windows, (1, 3, 5), strict=True):
        weight, bias = window.weight.detach().numpy(), window.bias.detach().numpy()
        for b in range(3):
            for j in range(7):
                value = bias.copy()
                for k in range(size):
                    if 0 <= j + k - size // 2 < 7:
                        value += weight[:, :, k] @ tokens[b, j + k - size // 2]
                expected = np.maximum(value, 0) * mask_BL[b, j].item()
                np.testing.assert_allclose(found[b, j, start : start + len(bias)], expected, atol=1e-12)
        start += len(bias)
    assert start == width


def test_the_ends_of_unigram_draws_are_words_of_the_text():
    columns = [np.array([2, 5, 5, 3]), np.array([2, 6, 5, 3]), np.array([], dtype=int)]
    generator = UnigramGenerator(columns, 8, special=(2, 3))
    ends = generator.propose(np.zeros((1, 2), int), np.ones((1, 2), int), np.array([[0.0, 1.0 - 1e-16]]))
    assert set(ends[0].tolist()) <= {5, 6}
