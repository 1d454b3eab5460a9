"""``SentenceEncoder.precision``: layers in 16 bits, sums and vectors in 32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parts import new_prompt, sentence_encoder

SENTENCES = ["red bird", "", "a small dog sleeps on the mat", "the old house", "a cat"]


@pytest.mark.parametrize("pooler", ["cls", "mean"])
@pytest.mark.parametrize("frozen", [True, False])
def test_layers_in_16_bits(bert, pooler, frozen):
    encoder = sentence_encoder(bert, new_prompt("key_value", bert, length=3, init_std=0.7), pooler=pooler)
    encoder.backbone.requires_grad_(not frozen)
    exact = encoder.encode(SENTENCES)
    for precision in ("bf16", "fp16"):
        encoder.precision = precision
        found = encoder.encode(SENTENCES)
        assert found.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
        assert 1e-6 < np.abs(found - exact).max() < 0.03
    encoder.precision = "fp32"
    np.testing.assert_array_equal(encoder.encode(SENTENCES), exact)
