"""What was trained on a frozen backbone, as a domain: one file whose prompts are inputs of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cse.export.row_updates import updates_of
from cse.export.versions import versions
from cse.model.checkpoint import describe
from cse.model.pooling import TanhMlp
from cse.model.post import LinearMap
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.domain import DOMAIN_FORMAT, Domain, DomainFacts, hashes_of


def as_domain(
    encoder: SentenceEncoder,
    name: str,
    *,
    normalize: bool,
    metrics: dict[str, Any] | None = None,
    checkpoint: str = "",
    centres: NDArray[np.float32] | None = None,
    adapters: Sequence[str] = (),
) -> Domain:
    """Return the deep prompt, trained ``[CLS]``, tanh projector and linear map of an encoder; it has no other parts.

    Args:
        encoder: on a backbone that is frozen, or trained as ``updates_of`` takes it.
        normalize: whether embeddings have unit length by default.
        centres: see ``Domain``.
        adapters: layers of the bank that take low-rank updates.
    """
    backbone = encoder.transformer
    facts = describe(encoder)
    with torch.no_grad():
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
            tensors |= {name: _array(tensor) for name, tensor in updates_of(encoder, adapters).items()}
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
            adapters=[] if encoder.frozen else list(adapters),
        ),
        **tensors,
    )


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())
