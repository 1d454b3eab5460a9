"""Tell what each tensor of a released file is: language model, prefix, projector, or needed in training only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cse.errors import CseError
from cse.interchange.layouts import Layout

Tensors = dict[str, torch.Tensor]
OUTER = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}
PREFIX = "prefix_encoder."
_PROJECTOR, _POOLER = "mlp.", "pooler."
_POSITIONS = "embeddings.position_ids"


@dataclass
class Sorted:
    """The tensors of a file.

    Attributes:
        outer: what stands before the language model's names: ``bert.``, ``roberta.`` or nothing.
        projector_said: the same for the projector's: ``mlp.``, or ``pooler.`` beside bare names.
        model: the language model's, under the library's names.
        prefix: the prefix encoder's: ``embedding.weight``, and ``trans.*`` where it was trained through a network.
        projector: the projector's: ``dense.weight``, ...
        left_out: how many are not needed, by the beginning of their names.
    """

    outer: str
    projector_said: str = _PROJECTOR
    model: Tensors = field(default_factory=dict)
    prefix: Tensors = field(default_factory=dict)
    projector: Tensors = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


def sort_tensors(tensors: Mapping[str, torch.Tensor], layout: Layout, model_type: str, path: Path) -> Sorted:
    """Sort a file's tensors; none is dropped without a word.

    Args:
        tensors: from ``read_tensors``.
        model_type: ``model_type`` of the backbone's config.
    """
    found = Sorted(_outer(tensors, layout, model_type, path))
    if not found.outer and not any(name.startswith(_PROJECTOR) for name in tensors):
        found.projector_said = _POOLER
    for name, tensor in tensors.items():
        if not _place(found, name, tensor, layout):
            raise CseError(
                f"{path}: {name} has no place in a {layout.name} model, and nothing is dropped in silence; is it a "
                "file of another code (--as)?"
            )
    return found


def _place(found: Sorted, name: str, tensor: torch.Tensor, layout: Layout) -> bool:
    """Put a tensor where it belongs; return whether it belongs anywhere."""
    outer, said = found.outer, found.projector_said
    inner = name.removeprefix(outer) if name.startswith(outer) else ""
    if inner == _POSITIONS:  # 0, 1, 2, ...
        found.left_out[name] += 1
    elif outer and inner.startswith(_POOLER):
        found.left_out[f"{outer}{_POOLER}*"] += 1
    elif inner.startswith(("embeddings.", "encoder.")):
        found.model[inner] = tensor
    elif layout.frozen and name.startswith(PREFIX):
        found.prefix[name.removeprefix(PREFIX)] = tensor
    elif name.startswith(said):
        found.projector[name.removeprefix(said)] = tensor
    else:
        starts = [start for start in layout.training_only if name.startswith(start)]
        found.left_out.update(f"{start}*" for start in starts[:1])
        return bool(starts)
    return True


def _outer(tensors: Mapping[str, torch.Tensor], layout: Layout, model_type: str, path: Path) -> str:
    """Return what stands before the language model's names."""
    outer = OUTER[model_type]
    if any(name.startswith(outer) for name in tensors):
        return outer
    for other in set(OUTER.values()) - {outer}:
        if any(name.startswith(other) for name in tensors):
            raise CseError(
                f"{path}: its names begin with {other!r}, but the backbone is a {model_type!r} model; name the "
                "backbone that it was trained on"
            )
    if layout.bare and any(name.startswith("encoder.") for name in tensors):
        return ""
    raise CseError(
        f"{path}: no name begins with {outer!r}, so it holds no language model as {layout.name} saves it; found "
        f"{', '.join(sorted(tensors)[:2])}"
    )
