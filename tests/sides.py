"""Encoders with a query side, as a training would leave them."""

from typing import Any

import numpy as np
import torch

from cse.model.post import QUERY_MAP, LinearMap
from cse.model.sentence_encoder import SentenceEncoder
from tests.parts import moved, new_prompt, sentence_encoder

PARTS: dict[str, dict[str, Any]] = {
    "prompt": {"length": 3},
    "prompt without shift": {"length": 4, "position_shift": False},
    "cls": {"cls": True},
    "map": {"mapped": True},
    "prompt, projector and map": {"length": 2, "cls": True, "mlp": "always", "mapped": True},
}


def query_side(backbone, *, length: int = 0, mapped: bool = False, seed: int = 0, **options: Any) -> SentenceEncoder:
    """An encoder of a query side whose every weight was moved."""
    torch.manual_seed(seed)
    prompt = new_prompt("key_value", backbone, length=length, init_std=0.5) if length else None
    encoder = moved(sentence_encoder(backbone, prompt, side="query", **options), 0.05)
    if mapped:
        width = encoder.dimension
        matrix = np.eye(width) + np.random.default_rng(seed).normal(scale=0.1, size=(width, width))
        encoder.post = LinearMap.of(QUERY_MAP, np.zeros(width), matrix)
    return encoder
