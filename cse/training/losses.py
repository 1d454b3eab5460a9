"""The training loss: a weighted sum of terms, such as NT-Xent and the hinge (PromCSE equation 12)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from cse.losses.shared import Batch, Loss


class Losses(nn.Module):
    """The total loss of a system.

    Args:
        terms: terms by settings key, in the order of summation.
        own: for each source, the weights that replace those of terms on its batches, by name; 0: not computed.
    """

    def __init__(self, terms: Mapping[str, Loss], own: Sequence[Mapping[str, float]] = ()) -> None:
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        self.own = own

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return each unweighted term by name and the weighted sum as ``loss``, all scalars."""
        values, loss = {}, batch.projected_XD.new_zeros(())
        for name, term, own in self._of(batch):
            values[name] = term(batch)
            loss = loss + term.weight(batch.step, own) * values[name]
        return values | {"loss": loss}

    def record(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of a batch's terms, with NaN for those that its source does without."""
        return dict.fromkeys(self.terms, math.nan) | dict(values)

    def after_update(self, batch: Batch) -> None:
        """Update state that follows the encoder, after the encoder's update with this batch."""
        for _, term, _ in self._of(batch):
            term.after_update(batch)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the loss's own trainable weights, by name."""
        return {f"loss.{name}": weight for name, weight in self.named_parameters() if weight.requires_grad}

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each weight that has its own, by name."""
        terms = self.named_terms()
        return {f"loss.terms.{name}.{part}": rate for name, term in terms for part, rate in term.rates().items()}

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the terms' buffers by name; a resumed run needs them besides the trained weights."""
        return dict(self.named_buffers())

    def named_terms(self) -> list[tuple[str, Loss]]:
        """Return the terms by settings key."""
        return list(self.terms.items())  # type: ignore[arg-type]

    def _of(self, batch: Batch) -> list[tuple[str, Loss, float | None]]:
        """Return the terms of a batch's source with the weight that replaces each one's, if any."""
        own = self.own[batch.source] if self.own else {}
        return [(name, term, own.get(name)) for name, term in self.named_terms() if own.get(name) != 0]
