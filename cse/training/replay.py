"""Run passes twice: once for the loss without storing activations, then again for the gradient (GradCache).

Gao et al. 2021: the gradient of a contrastive loss reaches the weights only through the embeddings. A large batch can
therefore be encoded slice by slice without keeping activations; the loss uses all embeddings, and the backward pass
encodes the slices again, one at a time, to carry the gradient of the embeddings to the weights. The gradient is exact
only if the second pass drops the same units as the first, so the random states of CPU and GPU are saved. Where
positives differ by dropout alone, different units would silently make it a different method.

The two passes use ``torch.utils.checkpoint`` around whole slices, so it also works for terms with their own passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

R = TypeVar("R")


def run_twice(run: Callable[..., R], *tensors: torch.Tensor) -> R:
    """Return ``run(*tensors)`` without storing activations; the backward pass recomputes them.

    Args:
        run: a pass; may close over tensors with gradient.
        tensors: inputs of the pass; the random state of their device is replayed.
    """
    made: Any = checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=True)
    return made


class RandomState:
    """Torch's current random state on the CPU and a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def replay(self, draw: Callable[[], R]) -> R:
        """Return ``draw()`` run from this saved state; leave the current random state unchanged."""
        with torch.random.fork_rng([self.device] if self.cuda is not None else []):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            return draw()
