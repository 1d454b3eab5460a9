"""A moving average of the trained weights over the steps (Polyak averaging)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class WeightAverage:
    """Follows the weights; with a share of 0 it is the weights themselves and costs nothing.

    Args:
        weights: the trained weights by name; they are updated in place.
        share: share of itself that the average keeps at each step; over the first steps ``(1 + t) / (10 + t)`` if that
            is less, so that the initial weights do not linger.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], share: float) -> None:
        self.share = share
        self.weights = weights if share > 0.0 else {}
        self.values: dict[str, torch.Tensor] = {}
        self.start()

    def start(self) -> None:
        """Begin again at the weights as they are."""
        self.values = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update ``step``, from 1."""
        if self.values:
            keep = min(self.share, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self.values.values()), list(self.weights.values()), 1.0 - keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average where the weights are."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self.weights.items():
            kept = weight.detach().clone()
            weight.copy_(self.values[name])
            self.values[name].copy_(kept)
