"""Encoders of every family, prompt kind, pooler and post-processing, to encode with or to export; no ONNX needed."""

from typing import Any

import numpy as np
import torch

from cse.model.post import LinearMap, fit_discriminant, fit_whitening
from cse.model.sentence_encoder import SentenceEncoder
from tests.parts import moved, new_flow, new_prompt, new_template, sentence_encoder

SENTENCES = [
    "the cat sits on the mat",
    "dog",
    "",
    "two small birds eat red apple bread near the old river",
    "a woman reads a book in the garden and not in the house",
    "no",
    "the music of the rain " * 12,
]
# every family, prompt kind, pooler and mlp occurs in a row of one of the two
ROWS = {
    "bert key_value mean": ("bert", "key_value", {"pooler": "mean"}),
    "bert hidden_state block1": (
        "bert", "hidden_state", {"pooler": "mean_first_last", "first_layer": "block1", "position_shift": False},
    ),
    "bert input cls": ("bert", "input", {"pooler": "cls"}),
    "roberta key_value last mlp": ("roberta", "key_value", {"pooler": "last", "mlp": "always"}),
    "roberta none mean_top2 train_only": ("roberta", None, {"pooler": "mean_top2", "mlp": "train_only"}),
}  # fmt: skip
_TEMPLATE = "the man reads {sentence} near {mask} ."
# what puts more into graph or tokenizer than a prompt
PARTS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "bert template mask lora": ("bert", None, {
        "pooler": "mask", "template": {"text": _TEMPLATE}, "trained": "lora", "lora_rank": 2,
    }),
    "roberta template denoised": ("roberta", "key_value", {
        "pooler": "mask", "denoise": "always", "template": {"text": _TEMPLATE, "end_with_period": True},
    }),
    "roberta trained template": ("roberta", None, {
        "pooler": "mask", "denoise": "always", "template": {"text": _TEMPLATE, "trained": True},
    }),
    "bert cls prompt cnn": ("bert", "hidden_state", {"pooler": "cnn", "cls": True}),
    "bert whitening": ("bert", "key_value", {"pooler": "mean", "post": "whitening"}),
    "roberta flow mlp": ("roberta", None, {"pooler": "cls", "mlp": "always", "post": "flow"}),
}  # fmt: skip

# what each leaves of 32 numbers: 20, 7, 7, 32
POST = {
    "whitening": lambda vectors: fit_whitening(vectors, 20),
    "discriminant": lambda vectors: fit_discriminant(vectors, [str(row % 8) for row in range(len(vectors))], 0.1),
    "linear": lambda vectors: LinearMap.of("linear", np.ones(32), np.asarray(vectors[:7], dtype=np.float64).T),
    "flow": lambda vectors: new_flow(vectors, seed=3),
}


def make_encoder(
    backbone, kind, *, template: dict[str, Any] | None = None, post: str | None = None, **options
) -> SentenceEncoder:
    """An encoder whose trained weights stand elsewhere than where they start."""
    torch.manual_seed(3)
    prompt = None if kind is None else new_prompt(kind, backbone, length=5, dropout=0.1, init_std=0.7)
    templates = [] if template is None else [new_template(backbone=backbone, **template)]
    encoder = moved(sentence_encoder(backbone, prompt, templates=templates, **options))
    if post is not None:
        vectors = (np.random.default_rng(3).normal(size=(200, 32)) * np.linspace(1, 3, 32)).astype(np.float32)
        encoder.post = POST[post](vectors)
    return encoder
