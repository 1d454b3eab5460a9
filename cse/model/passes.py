"""What enters and leaves a pass through the encoder: arrays moved to the device, rows packed one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from sysconfig import get_path
from typing import Any, Protocol

import numpy as np
import torch

from cse.model.attention import Prefix


class Alteration(Protocol):
    """Changes that augmentation makes between word vectors and the first layer."""

    def positions(self, positions_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Return the position ids to use, ``(B, L)``."""

    def embedded(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer, ``(B, L, D)``."""


@dataclass(frozen=True)
class Constants:
    """Values that do not depend on the sentence.

    Attributes:
        noise_TND: output of each template without a sentence, indexed by sentence length ``n``; or None.
    """

    prefix: Prefix | None = None
    noise_TND: torch.Tensor | None = None


@dataclass(frozen=True)
class TokenBatch:
    """Outputs for a slice of rows.

    Attributes:
        states: the last layer's output ``(B, L, D)`` without prompt columns, preceded by all others if pooling needs
            them.
        local_BLD: token features to pool (of the last layer or the convolutions); None if not kept.
    """

    states: list[torch.Tensor]
    local_BLD: torch.Tensor | None
    pooled_BD: torch.Tensor
    noise_BD: torch.Tensor | None


WIDTHS = (32, 64)  # of a head: what the kernel was tried with
LONGEST = 32  # tokens of a row: more scores do not fit into registers


@dataclass(frozen=True)
class Packed:
    """Where the tokens of a padded batch ``(B, L)`` are.

    Attributes:
        places_T: place of each in the flattened batch; those behind the last are ``B * L``.
        starts: where each row starts, and where the last ends, int64.
        prompt_dropout: probability of dropping an entry of a layer's prompt, drawn per row.
    """

    places_T: torch.Tensor
    starts: torch.Tensor
    longest: int
    prompt_dropout: float = 0.0

    def pack(self, values_BL: torch.Tensor) -> torch.Tensor:
        """Return ``(1, T, ...)`` of ``(B, L, ...)``."""
        flat = values_BL.flatten(0, 1)
        return flat.index_select(0, self.places_T.clamp(max=len(flat) - 1))[None]

    def attend(self, *tensors: Any, dropout: float, scaling: float) -> torch.Tensor:
        """Attend within each row, see ``packed_attention.attend``."""
        attended: torch.Tensor = kernel().attend(*tensors, self, dropout=dropout, scaling=scaling)
        return attended

    def pad(self, values_1T: torch.Tensor, rows: int) -> torch.Tensor:
        """Return ``(B, L, ...)`` of ``(1, T, ...)``, zeros for padding."""
        count = rows * self.longest
        flat = values_1T.new_zeros((count + 1, *values_1T.shape[2:])).index_copy(0, self.places_T, values_1T[0])
        return flat[:count].unflatten(0, (rows, self.longest))


def pack_rows(mask_BL: np.ndarray, multiple: int = 1) -> list[np.ndarray]:
    """Return ``places_T`` and ``starts`` of ``Packed`` for padded rows.

    Args:
        multiple: tokens are filled up to one of it, so that batches are of few sizes: with rows of their own, which
            attend to each other alone.
    """
    rows, longest = mask_BL.shape
    places = np.flatnonzero(mask_BL)
    total = -(-len(places) // multiple) * multiple
    ends = mask_BL.sum(axis=1).cumsum()
    more = np.minimum(ends[-1] + longest * np.arange(1, 1 + (multiple + longest - 2) // longest), total)
    filled = np.full(total - len(places), rows * longest)
    return [np.concatenate([places, filled]), np.concatenate([[0], ends, more])]


def kernel() -> Any:
    """Return the module of the kernel, by its name: copies of this file in exported folders do without."""
    return import_module("cse.model.packed_attention")


@cache
def has_kernel() -> bool:
    """Return whether Triton is there and can compile, which takes a C compiler and Python's headers."""
    headers = Path(get_path("include"), "Python.h").is_file()
    return find_spec("triton") is not None and headers and any(which(name) for name in ("cc", "gcc", "clang"))


def on_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return int64 arrays as tensors on a device: one copy from pinned memory, which nobody waits for.

    On the CPU, the tensors share the arrays' memory.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    return as_parts(in_one(arrays).to(device, non_blocking=True), arrays)


def in_one(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    """Return the numbers of int64 arrays, one array behind the other, in pinned memory."""
    flat = torch.empty(sum(array.size for array in arrays), dtype=torch.int64, pin_memory=True)
    np.concatenate([array.ravel() for array in arrays], out=flat.numpy())
    return flat


def as_parts(flat: torch.Tensor, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    """Return the parts of what ``in_one`` made, shaped as the arrays were."""
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def pinned(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return an array of any kind and shape as a tensor on a device, likewise."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
