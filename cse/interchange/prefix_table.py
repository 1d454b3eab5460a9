"""The table of a prefix: as it is stored, or multiplied out of the network that it was trained through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from cse.errors import CseError
from cse.interchange.same_model import check_shapes
from cse.interchange.sorting import PREFIX
from cse.model.backbone import Backbone

TABLE = "embedding.weight"
_FIRST, _SECOND = "trans.0", "trans.2"


def columns_of(backbone: Backbone) -> int:
    """Return the width of a backbone's prefix table: (layer, key or value, head, K)."""
    return 2 * backbone.layers * backbone.heads * backbone.head_size


def read_table(prefix: Mapping[str, torch.Tensor], backbone: Backbone, path: Path) -> torch.Tensor:
    """Return the table ``(P, 2 * layers * H * K)`` of a prefix encoder.

    With ``trans`` it is ``tanh(E W0^T + b0) W2^T + b2``, computed in float64; ``E`` is ``(P, D)``.
    """
    if TABLE not in prefix:
        raise CseError(f"{path}: lacks {PREFIX}{TABLE}; a model without its prompts is the bare backbone")
    length, width = prefix[TABLE].shape[0] if prefix[TABLE].dim() else 0, columns_of(backbone)
    if length == 0:
        raise CseError(f"{path}: {PREFIX}{TABLE} is empty; fetch it again")
    wanted = {TABLE: torch.empty((length, width), device="meta")}
    through_network = any(name.startswith("trans.") for name in prefix)
    if through_network:
        hidden = prefix[f"{_FIRST}.bias"].numel() if f"{_FIRST}.bias" in prefix else 0
        shapes = {
            TABLE: (length, backbone.hidden_size),
            f"{_FIRST}.weight": (hidden, backbone.hidden_size),
            f"{_FIRST}.bias": (hidden,),
            f"{_SECOND}.weight": (width, hidden),
            f"{_SECOND}.bias": (width,),
        }
        wanted = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    check_shapes(prefix, wanted, path, f"a prefix on {backbone.files.name}", PREFIX)
    if not through_network:
        return prefix[TABLE].float()
    part = {name: tensor.double() for name, tensor in prefix.items()}
    inner = torch.tanh(part[TABLE] @ part[f"{_FIRST}.weight"].T + part[f"{_FIRST}.bias"])
    return (inner @ part[f"{_SECOND}.weight"].T + part[f"{_SECOND}.bias"]).float()
