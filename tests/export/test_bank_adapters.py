"""A bank whose domains have biases or low-rank updates of their own gives what each domain's own encoder gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cse.errors import CseError
from cse.export.bank import create_bank, make_domain
from cse.export.bank_encoder import BankEncoder
from cse.export.domains import add_domain
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bank import Bank
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.systems import SENTENCES
from tests.model.families import make_family_folder
from tests.parts import new_prompt, sentence_encoder

# what is trained in the backbone, the rank, the prompt's length
KINDS = {
    "lora": ("lora", 2, 0),
    "prompted lora": ("lora", 3, 4),
    "biases": ("biases", 0, 0),
    "prompted biases": ("biases", 0, 2),
    "prompts": ("prompts", 0, 5),
    "bare": ("prompts", 0, 0),
}


def make_encoder(folder, kind, seed=0, trained=None):
    """An encoder of a kind whose trained weights stand far from where they start."""
    backbone = load_backbone(find_backbone(str(folder)))
    torch.manual_seed(seed)
    which, rank, length = KINDS[kind]
    prompt = new_prompt("key_value", backbone, length=length, init_std=0.7) if length else None
    rotary = backbone.family.positions == "rotary"
    encoder = sentence_encoder(
        backbone, prompt, pooler="mean", trained=trained or which, lora_rank=rank, position_shift=not rotary
    )
    with torch.no_grad():
        for weight in encoder.trainable().values():
            weight.add_(0.1 * torch.randn_like(weight))
    return encoder.eval()


def make(folder, place, adapters=("all",)):
    encoders = {kind.replace(" ", "-"): make_encoder(folder, kind, seed) for seed, kind in enumerate(KINDS)}
    assert create_bank(encoders["bare"], place, tolerance=1e-5, adapters=adapters) < 1e-5
    for name, encoder in encoders.items():
        add_domain(place, make_domain(encoder, name, bank=Bank(place).manifest))
    return encoders


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert", "electra", "llama"])
def test_mixed_rows_equal_each_domains_own_encoder(family, tmp_path):
    folder = make_family_folder(tmp_path / "model", family)
    encoders = make(folder, tmp_path / "bank")
    texts = [text for text in SENTENCES for _ in encoders]
    names = list(encoders) * len(SENTENCES)
    expected = np.stack([encoders[name].encode(text) for text, name in zip(texts, names, strict=True)])
    onnx = OnnxEncoder(tmp_path / "bank", provider="cpu")
    for batch in (1, 4, 64):
        np.testing.assert_allclose(onnx.encode(texts, batch, domain=names), expected, atol=1e-5)
    own = BankEncoder(load_backbone(find_backbone(str(folder))), onnx.bank)
    np.testing.assert_allclose(own.encode(texts, domain=names), expected, atol=1e-5)
    for name, encoder in encoders.items():
        np.testing.assert_allclose(onnx.encode(SENTENCES, domain=name), encoder.encode(SENTENCES), atol=1e-5)
        if name != "bare" and not (name == "biases" and family in ("modernbert", "llama")):  # they have none
            assert np.abs(encoder.encode(SENTENCES) - encoders["bare"].encode(SENTENCES)).max() > 0.01, name
