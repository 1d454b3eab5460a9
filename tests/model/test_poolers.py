"""Read-outs beside numpy; poolers: ``test_prompts``, projectors of the loss: ``tests/training/test_terms``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cse.model.mlm_head import load_mlm_head
from cse.model.pooling import BatchNormProjector, TokenCnn
from cse.model.prompts import Reparametrized
from tests.parts import backbone_of, sentence_encoder
from tests.tiny import make_backbone_folder


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


def linear_layers(part):
    return [layer for layer in part.modules() if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize(
    "make",
    [lambda start: BatchNormProjector(200, start), lambda start: Reparametrized("mlp", (10, 800), 10, 200, 512, start)],
)
def test_new_layers_start_as_in_the_released_code_or_as_torch_has_it(make):
    """Normal with 0.02 and no bias; torch's start of these layers has another deviation, and biases."""
    torch.manual_seed(0)
    released = linear_layers(make("normal"))
    assert len(released) == 2
    for layer in released:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)
        assert abs(layer.weight.mean().item()) < 2e-4
        assert layer.bias is None or not layer.bias.any()
    for layer in linear_layers(make("torch")):
        assert layer.weight.std().item() == pytest.approx((3 * layer.in_features) ** -0.5, rel=0.02)
        assert layer.bias is None or layer.bias.any()


def test_mlm_transform_starts_as_that_of_the_pretrained_head(family, tmp_path):
    """What it computes: ``tests/interchange/test_released``."""
    backbone = backbone_of(make_backbone_folder(tmp_path / "backbone", family, head=True))
    encoder = sentence_encoder(backbone, pooler="cls", mlp="always", projector="mlm_transform")
    head = load_mlm_head(backbone, wanted_by="test")
    dense, _, norm = encoder.mlp
    for own, pretrained in ((dense, head.dense), (norm, head.norm)):
        assert torch.equal(own.weight, pretrained.weight) and torch.equal(own.bias, pretrained.bias)
    assert norm.eps == head.norm.eps
    assert {name.split(".")[0] for name in encoder.trainable()} == {"mlp"}
