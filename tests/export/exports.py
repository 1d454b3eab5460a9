"""Tiny encoders and their bundles, exported once for all tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from cse.export.bundle import write_bundle
from cse.export.parity import check_parity
from cse.model.encoder import SentenceEncoder
from cse.model.prompts import Prompt
from cse.runtime.onnx_encoder import OnnxEncoder

SENTENCES = [
    "the cat sits on the mat",
    "dog",
    "",
    "two small birds eat red apple bread near the old river",
    "a woman reads a book in the garden and not in the house",
    "no",
    "the music of the rain " * 12,
]
# every family, prompt kind, pooler and mlp occurs in a row
ROWS = {
    "bert key_value mean": ("bert", "key_value", {"pooler": "mean"}),
    "bert hidden_state block1": (
        "bert",
        "hidden_state",
        {"pooler": "mean_first_last", "first_layer": "block1", "position_shift": False},
    ),
    "roberta key_value cls mlp": ("roberta", "key_value", {"pooler": "cls", "mlp": "always"}),
    "roberta none mean_top2 train_only": ("roberta", None, {"pooler": "mean_top2", "mlp": "train_only"}),
}


@dataclass
class Exported:
    """An encoder and its bundle."""

    encoder: SentenceEncoder
    folder: Path

    def open(self) -> OnnxEncoder:
        return OnnxEncoder(self.folder, provider="cpu", threads=1)


def make_encoder(backbone, kind, **options) -> SentenceEncoder:
    torch.manual_seed(3)
    prompt = None if kind is None else Prompt(kind, backbone, length=5, dropout=0.1, init_std=0.7)
    return SentenceEncoder(backbone, prompt, **options)


def export(encoder: SentenceEncoder, folder: Path, tolerance: float = 1e-5) -> Exported:
    """What the stage does, on the sentences above."""
    with write_bundle(encoder, folder, normalize=True, metrics={"train": {"dev_spearman": 80.5}}) as draft:
        onnx = OnnxEncoder(draft.folder, provider="cpu", threads=1)
        draft.parity = check_parity(encoder, onnx, SENTENCES, tolerance=tolerance)
    return Exported(encoder, folder)
