"""Banks of tiny encoders that differ in everything a domain may differ in."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from cse.export.bank import make_domain
from cse.export.domains import add_domain
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.sentence_encoder import SentenceEncoder
from tests.parts import new_prompt, sentence_encoder

# kind of prompt, its length, whether all layers share it; options of the encoder
KINDS = {
    "plain": ("key_value", 5, False, {"pooler": "mean"}),
    "projected": ("key_value", 2, False, {"pooler": "cls", "mlp": "always"}),
    "hidden": ("hidden_state", 7, False, {"pooler": "cls", "position_shift": False}),
    "shared": ("key_value", 1, True, {"pooler": "mean", "position_shift": False}),
    "shared-hidden": ("hidden_state", 3, True, {"pooler": "mean", "mlp": "train_only"}),
    "own-cls": ("key_value", 4, False, {"pooler": "cls", "cls": True}),
    "bare": (None, 0, False, {"pooler": "mean"}),
}


def make_encoders(folder: Path) -> dict[str, SentenceEncoder]:
    """An encoder of each kind on one backbone."""
    return {name: make_encoder(folder, name, seed) for seed, name in enumerate(KINDS)}


def make_encoder(folder: Path, name: str, seed: int = 0) -> SentenceEncoder:
    """An encoder of a kind whose trained weights stand far from where they start."""
    backbone = load_backbone(find_backbone(str(folder)))
    kind, length, shared, options = KINDS[name]
    torch.manual_seed(seed)
    prompt = kind and new_prompt(kind, backbone, length=length, shared=shared, dropout=0.1, init_std=0.7)
    encoder = sentence_encoder(backbone, prompt or None, **options)
    with torch.no_grad():
        for weight in encoder.trainable().values():
            weight.add_(0.1 * torch.randn_like(weight))
    return encoder.eval()


def make_bank(out: Path, empty: Path, encoders: dict[str, SentenceEncoder]) -> Path:
    """A bank with every encoder as a domain; ``empty`` is one without domains, see ``empty_banks``."""
    shutil.copytree(empty, out)
    for name, encoder in encoders.items():
        add_domain(out, make_domain(encoder, name))
    return out
