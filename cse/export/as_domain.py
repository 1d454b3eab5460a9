"""What was trained on a frozen backbone, as a domain: one file whose prompts are inputs of a graph."""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cse.errors import CseError, in_terms_of
from cse.export.row_updates import KINDS, updates_of
from cse.model.backbone import Backbone
from cse.model.checkpoint import describe
from cse.model.pooling import TanhMlp
from cse.model.post import LinearMap
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bundle import Manifest
from cse.runtime.domain import (
    DOMAIN_FORMAT,
    POOLERS,
    Domain,
    DomainFacts,
    check_name,
    hashes_of,
)

# of packages that decide what is exported
_PACKAGES = ("cse", "torch", "transformers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "tokenizers")


def make_domain(
    encoder: SentenceEncoder,
    name: str,
    *,
    normalize: bool = True,
    metrics: dict[str, Any] | None = None,
    checkpoint: str = "",
    centres: NDArray[np.float32] | None = None,
    bank: Manifest | None = None,
    alone: bool = False,
) -> Domain:
    """Return an encoder's deep prompt, trained ``[CLS]``, projector, linear map and updates of its layers, as a domain.

    Args:
        encoder: trained prompts, biases or low-rank updates, or a bare backbone.
        normalize: whether embeddings have unit length by default.
        centres: see ``Domain``.
        bank: that it is for; None: one of prompts alone.
        alone: whether it is the query side of its own bundle, which has the rest of it.
    """
    check_name(name)
    backbone = layered(encoder)
    if obstacle := "" if alone else _obstacle(encoder, takes_updates=bank is not None and bool(bank.updates)):
        raise CseError(f"domain {name}: {obstacle}; export it as a bundle of its own (cse export)")
    facts, adapters = describe(encoder), [] if bank is None or encoder.frozen else list(bank.adapters)
    with torch.no_grad(), in_terms_of(f"domain {name}: "):
        prefix = encoder.prefix() or []
        blocks = [block for pair in prefix for block in pair]
        empty = torch.empty((2 * backbone.layers, backbone.heads, 0, backbone.head_size))
        tensors = {"prompt": _array(torch.stack(blocks) if blocks else empty)}
        if encoder.cls is not None:
            tensors["cls"] = _array(encoder.cls)
        if isinstance(encoder.mlp, TanhMlp) and encoder.read_out.mlp == "always":
            tensors["projector_weight"] = _array(encoder.mlp.dense.weight)
            tensors["projector_bias"] = _array(encoder.mlp.dense.bias)
        if isinstance(encoder.post, LinearMap):
            tensors |= {"map_mean": _array(encoder.post.mean), "map_matrix": _array(encoder.post.matrix)}
        if not encoder.frozen:
            tensors |= {key: _array(tensor) for key, tensor in updates_of(encoder, adapters).items()}
    if centres is not None:
        tensors["centres"] = np.ascontiguousarray(centres, np.float32)
    return Domain(
        DomainFacts(
            format=DOMAIN_FORMAT,
            name=name,
            backbone=backbone.files.sha256,
            pooler=encoder.pooler,
            normalize=normalize,
            position_shift=encoder.shift,
            max_length=encoder.max_length,
            width=backbone.dimension,
            words=backbone.word_size,
            hashes=hashes_of(tensors),
            prompt=facts["prompt"] or {},
            metrics=metrics or {},
            checkpoint=checkpoint,
            versions=versions(),
            texts=encoder.texts if any(encoder.texts.values()) else {},
            side=encoder.side,
            adapters=adapters,
        ),
        **tensors,
    )


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def layered(encoder: SentenceEncoder) -> Backbone:
    """Return the backbone of an encoder that a domain can be made of."""
    backbone = encoder.backbone
    if not isinstance(backbone, Backbone):
        raise CseError(f"{backbone.files.name}: word vectors have no layers that a prompt could enter")
    return backbone


def _obstacle(encoder: SentenceEncoder, *, takes_updates: bool) -> str:
    """Return what keeps an encoder out of a bank, or an empty string."""
    if not encoder.frozen and encoder.trained not in KINDS:
        return f"weights of the language model were trained ({encoder.trained}), so a bank's backbone is not its own"
    if not encoder.frozen and not takes_updates:
        return (
            f"it has {'low-rank updates' if encoder.trained == 'lora' else 'biases'} of the language model's layers, "
            "and the bank takes prompts alone; create a bank with bank.adapters, or"
        )
    if encoder.prompt is not None and not encoder.prompt.deep:
        return "an input-layer prompt has no keys and values of its own"
    if encoder.templates:
        return "a template puts words around the sentence, and a bank has one tokenizer"
    if encoder.post is not None and not isinstance(encoder.post, LinearMap):
        return f"post-processing ({encoder.post.config()['kind']}) is not part of a bank"
    if encoder.pooler not in POOLERS:
        return f"pooler {encoder.pooler} is not part of a bank, which has {', '.join(POOLERS)}"
    if encoder.read_out.mlp == "always" and not isinstance(encoder.mlp, TanhMlp):
        return f"projector {encoder.read_out.projector} is not part of a bank, which has tanh"
    if encoder.widths:
        return f"it has shorter vectors ({', '.join(map(str, encoder.widths))}), and a bank has none"
    return ""


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide what is exported, as far as they are installed."""
    found = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):  # run from its tree, or onnxruntime without a GPU
            found[name] = importlib.metadata.version(name)
    return found
