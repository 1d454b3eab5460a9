"""Passes that are run twice: without storing activations for the loss, then again for their gradient (GradCache).

Gao et al. 2021: the gradient of a contrastive loss reaches the weights through the embeddings alone. So a large batch
is encoded slice by slice without keeping activations, the loss is taken over all embeddings, and on the way back each
slice is encoded again, one at a time, to carry its embeddings' gradient to the weights. The gradient is exact as long
as the second pass drops the same units as the first; the random states of CPU and GPU are kept for that. For positives
that differ by dropout alone anything less is silently another method.

The two passes are ``torch.utils.checkpoint`` around whole slices, so terms with passes of their own are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

R = TypeVar("R")


def run_twice(run: Callable[..., R], *tensors: torch.Tensor) -> R:
    """Return ``run(*tensors)`` without its activations; they are computed again when the gradient passes.

    Args:
        run: a pass; tensors with gradient that it takes from around it are fine.
        tensors: its inputs; their device is the one whose random state is replayed.
    """
    made: Any = checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=True)
    return made


class RandomState:
    """Torch's random state on the CPU and a device, as it is now."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def replay(self, draw: Callable[[], R]) -> R:
        """Draw as it was drawn from this state on; the state of now goes on afterwards as if nothing was drawn."""
        with torch.random.fork_rng([self.device] if self.cuda is not None else []):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            return draw()
