"""What is scored and saved in place of the last weights: an average over the steps, and with the initial weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class WeightAverage:
    """Follows the weights; with shares of 0 it is the weights themselves and costs nothing.

    Args:
        weights: the trained weights by name; they are updated in place.
        share: share of itself that a moving average keeps at each step (Polyak averaging); over the first steps
            ``(1 + t) / (10 + t)`` if that is less, so that the initial weights do not linger.
        start_share: share of the initial weights in the result (WiSE-FT, Wortsman et al. 2022: 1 - alpha).
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], share: float, start_share: float = 0.0) -> None:
        self.share, self.start_share = share, start_share
        self.weights = weights
        self.values: dict[str, torch.Tensor] = {}
        self.initial: dict[str, torch.Tensor] = {}
        self.start()

    def start(self) -> None:
        """Begin again at the weights as they are."""
        self.values = _copies(self.weights) if self.share > 0.0 else {}
        self.initial = _copies(self.weights) if self.start_share > 0.0 else {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update ``step``, from 1."""
        if self.values:
            keep = min(self.share, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self.values.values()), list(self.weights.values()), 1.0 - keep)

    @torch.no_grad()
    def result(self) -> dict[str, torch.Tensor]:
        """Return the weights to score and save by name; empty if they are the weights themselves."""
        if not self.initial:
            return self.values
        last = self.values or self.weights
        return {name: torch.lerp(last[name], start, self.start_share) for name, start in self.initial.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the result where the weights are."""
        result = self.result()
        if not result:
            yield
            return
        kept = _copies(self.weights)
        copy_into(self.weights, result)
        try:
            yield
        finally:
            copy_into(self.weights, kept)


@torch.no_grad()
def copy_into(weights: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Give every weight the value of its name, in place."""
    for name, weight in weights.items():
        weight.copy_(values[name])


def _copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}
