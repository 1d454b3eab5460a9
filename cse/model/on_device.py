"""Move what a step needs to the device, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


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
