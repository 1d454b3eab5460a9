"""What of an encoder fits into the forms of other tools."""

from __future__ import annotations

import torch

from cse.model.backbone import Backbone
from cse.model.flow import Flow
from cse.model.sentence_encoder import SentenceEncoder

POOLERS = {"cls": "cls", "mean": "mean", "last": "lasttoken"}  # names here and in sentence-transformers


def obstacle(encoder: SentenceEncoder) -> str:
    """Return what no other tool has a place for, or an empty string."""
    if not isinstance(encoder.backbone, Backbone):
        return "it reads word vectors from a file and has no layers"
    if encoder.prompt is not None and not encoder.prompt.deep:
        return "its input-layer prompt has no keys and values of its own"
    if encoder.templates:
        return "its template puts words around the sentence"
    if isinstance(encoder.post, Flow):
        return f"it has post-processing ({encoder.post.config()['kind']})"
    if encoder.pooler not in POOLERS:
        return f"its pooler is {encoder.pooler}, not one of {', '.join(POOLERS)}"
    return ""


def stacked_prefix(encoder: SentenceEncoder) -> torch.Tensor:
    """Return a deep prompt's keys and values ``(layers, 2, H, P, K)``, on the CPU; ``P`` is 0 without a prompt."""
    backbone = encoder.backbone
    with torch.no_grad():
        prefix = encoder.prefix()
        if prefix is None:
            return torch.empty((backbone.layers, 2, backbone.heads, 0, backbone.head_size))
        return torch.stack([torch.stack(pair) for pair in prefix]).float().cpu()
