"""A read-out and draws beside numpy; poolers: ``test_prompts``, projectors and heads: ``tests/training/test_terms``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cse.model.mlm_head import UnigramGenerator
from cse.model.pooling import TokenCnn


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
