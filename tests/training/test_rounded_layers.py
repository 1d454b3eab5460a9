"""Under autocast a frozen backbone runs through layers whose weights were rounded to bfloat16 once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.parts import Cut, backbone_of
from tests.training.helpers import copies
from tests.training.systems import SYSTEMS, take_step

ROWS = np.array([3, 17, 0, 9, 31, 5, 22])


def run(backbone, *, bf16):
    torch.manual_seed(1)
    embedded, mask = torch.randn(3, 5, backbone.hidden_size), torch.ones(3, 5, dtype=torch.int64)
    mask[1, 3:] = 0
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        return backbone.run(embedded, backbone.positions(mask, 0), mask, None)


def test_weights_are_rounded_once_and_stay_in_float32(folder):
    backbone = backbone_of(folder).requires_grad_(False)
    before = copies(backbone.state_dict())
    rounded, again = (run(backbone, bf16=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(rounded, again, strict=True))
    assert {state.dtype for state in rounded} == {torch.bfloat16}
    for one, other in zip(run(backbone, bf16=False), rounded, strict=True):
        assert 0 < (one - other).abs().max() < 0.05 * one.abs().max()
    after = backbone.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert {weight.dtype for weight in backbone.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_step_in_bf16_is_near_one_in_float32(folder, name):
    exact, rounded = (take_step(name, folder, ROWS, Cut(2, None), precision=way) for way in ("fp32", "bf16"))
    for term, value in exact["terms"].items():
        assert rounded["terms"][term] == pytest.approx(value, rel=0.03, abs=0.01), term
    both = [torch.cat([gradient.flatten() for gradient in way["gradients"].values()]) for way in (exact, rounded)]
    assert torch.cosine_similarity(*both, dim=0) > 0.95
