"""What is scored and saved in place of the last weights: their mean with the initial ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class InitialShare:
    """Mixes the initial weights in (WiSE-FT, Wortsman et al. 2022: 1 - alpha); a share of 0 costs nothing.

    Args:
        weights: the trained weights by name; they are updated in place.
        share: share of the initial weights in the result.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], share: float) -> None:
        self.weights, self.share = weights, share
        self.initial: dict[str, torch.Tensor] = {}
        self.start()

    def start(self) -> None:
        """Begin again at the weights as they are."""
        self.initial = _copies(self.weights) if self.share > 0.0 else {}

    @torch.no_grad()
    def result(self) -> dict[str, torch.Tensor]:
        """Return the weights to score and save by name; empty if they are the weights themselves."""
        return {name: torch.lerp(self.weights[name], start, self.share) for name, start in self.initial.items()}

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
