"""The FLOPs that a share of the floor counts are those that torch counts on the real backbone."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, BertConfig

from benchmarks import floor
from cse.model.backbone_files import find_backbone
from cse.model.declared import MINILM

ROWS, TOKENS = 2, 24


@pytest.fixture(scope="module")
def model():
    return AutoModel.from_pretrained(find_backbone(MINILM).folder, add_pooling_layer=False).train()


def _counted(model, *, frozen: bool, backward: bool) -> float:
    """Return the FLOPs of a pass, per weight and token; a frozen stack still passes gradients on to its input."""
    model.requires_grad_(not frozen)
    embedded = torch.randn(ROWS, TOKENS, model.config.hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        found = model(inputs_embeds=embedded).last_hidden_state
        if backward:
            found.sum().backward()
    return counter.get_total_flops() / (floor.weights(model) * ROWS * TOKENS)


@pytest.mark.parametrize(
    ("frozen", "backward", "counted"),
    [(True, False, floor.FORWARD), (True, True, floor.FROZEN_STEP), (False, True, floor.FULL_STEP)],
)
def test_flops_per_weight_and_token(model, frozen, backward, counted):
    # short texts: attention's own products, which are not counted, are within two per cent
    assert _counted(model, frozen=frozen, backward=backward) == pytest.approx(counted, rel=0.03)


def test_measured_products_have_a_rate_and_leave_tf32_as_it_was():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        rates = floor.measure(BertConfig(hidden_size=64, intermediate_size=128), torch.device("cpu"))
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert set(rates) == {"fp32", "bf16"}
    assert all(rate > 1e7 for rate in rates.values())
