"""Banks of tiny encoders that differ in everything a domain may differ in."""

import random
import shutil
from pathlib import Path

import numpy as np
import torch

from cse.export.bank import BankEncoder
from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.model.post import LinearMap
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.parts import backbone_of, moved, new_prompt, sentence_encoder

# kind of prompt, its length, whether all layers share it; options of the encoder
KINDS = {
    "plain": ("key_value", 5, False, {"pooler": "mean"}),
    "projected": ("key_value", 2, False, {"pooler": "cls", "mlp": "always"}),
    "hidden": ("hidden_state", 7, False, {"pooler": "cls", "position_shift": False}),
    "shared": ("key_value", 1, True, {"pooler": "mean", "position_shift": False}),
    "shared-hidden": ("hidden_state", 3, True, {"pooler": "mean", "mlp": "train_only"}),
    "own-cls": ("key_value", 4, False, {"pooler": "cls", "cls": True}),
    "headed": ("key_value", 3, False, {"pooler": "mean"}),
    "mapped": (None, 0, False, {"pooler": "cls", "mlp": "always"}),
    "bare": (None, 0, False, {"pooler": "mean"}),
}
MAPS = {"headed": 5, "mapped": 32}  # numbers of a vector behind a linear map


def make_encoders(folder: Path) -> dict[str, SentenceEncoder]:
    """An encoder of each kind on one backbone."""
    return {name: make_encoder(folder, name, seed) for seed, name in enumerate(KINDS)}


def make_encoder(folder: Path, name: str, seed: int = 0) -> SentenceEncoder:
    """An encoder of a kind whose trained weights stand far from where they start."""
    backbone = backbone_of(folder)
    kind, length, shared, options = KINDS[name]
    torch.manual_seed(seed)
    prompt = kind and new_prompt(kind, backbone, length=length, shared=shared, dropout=0.1, init_std=0.7)
    encoder = moved(sentence_encoder(backbone, prompt or None, **options))
    if name in MAPS:
        random = np.random.default_rng(seed)
        encoder.post = LinearMap.of("linear", random.normal(size=32), random.normal(size=(32, MAPS[name])))
    return encoder


def make_adapted(folder: Path, trained: str, *, prompt: int = 0, rank: int = 2, seed: int = 0) -> SentenceEncoder:
    """An encoder with trained weights in its backbone, ``rank`` of LoRA, and a prompt of this length if it is not 0."""
    backbone = backbone_of(folder)
    torch.manual_seed(seed)
    own = new_prompt("key_value", backbone, length=prompt, init_std=0.7) if prompt else None
    shifted = backbone.family.positions != "rotary"
    rank = rank if trained == "lora" else 0
    return moved(
        sentence_encoder(backbone, own, pooler="mean", trained=trained, lora_rank=rank, position_shift=shifted)
    )


def padded(vector: np.ndarray) -> np.ndarray:
    """A vector as an array of several domains holds it."""
    return np.pad(vector, (0, 32 - len(vector)))


def check_mixed(bank: Path, encoders: dict[str, SentenceEncoder], texts: list[str], **given) -> None:
    """Texts of all domains, mixed, have the vectors of each domain's own encoder, in onnxruntime and in torch."""
    rows = [(text, name) for text in texts for name in encoders]
    rows += rows[::3]
    random.Random(5).shuffle(rows)
    alone = {name: dict(zip(texts, encoder.encode(texts, **given), strict=True)) for name, encoder in encoders.items()}
    width = max(encoder.dimension for encoder in encoders.values())
    expected = np.stack([np.pad(alone[name][text], (0, width - len(alone[name][text]))) for text, name in rows])
    mixed, given = [text for text, _ in rows], given | {"domain": [name for _, name in rows]}
    in_torch = BankEncoder.load(bank)
    np.testing.assert_allclose(in_torch.encode(mixed, 5, **given), expected, atol=1e-5)
    for batch_size, threads in ((1, 1), (3, 1), (64, 2)):
        onnx = OnnxEncoder(bank, provider="cpu", threads=threads)
        np.testing.assert_allclose(onnx.encode(mixed, batch_size, **given), expected, atol=1e-5)


def make_bank(out: Path, empty: Path, encoders: dict[str, SentenceEncoder]) -> Path:
    """A bank with every encoder as a domain; ``empty`` is one without domains, see ``empty_banks``."""
    shutil.copytree(empty, out)
    for name, encoder in encoders.items():
        add_domain(out, make_domain(encoder, name))
    return out
