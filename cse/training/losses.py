"""The training loss: a weighted sum of terms, such as NT-Xent and the hinge (PromCSE equation 12)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from cse.training.batch import Batch
from cse.training.terms.term import Term


class Losses(nn.Module):
    """The total loss of a system.

    Args:
        terms: terms by settings key, in the order of summation.
    """

    def __init__(self, terms: Mapping[str, Term]) -> None:
        super().__init__()
        self.terms = nn.ModuleDict(terms)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return each unweighted term by name and the weighted sum as ``loss``, all scalars."""
        values, loss = {}, batch.projected_XD.new_zeros(())
        for name, term in self._named():
            values[name] = term(batch)
            loss = loss + term.weight(batch.step) * values[name]
        return values | {"loss": loss}

    def after_update(self, batch: Batch) -> None:
        """Update state that follows the encoder, after the encoder's update with this batch."""
        for _, term in self._named():
            term.after_update(batch)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the loss's own trainable weights, by name."""
        return {f"loss.{name}": weight for name, weight in self.named_parameters() if weight.requires_grad}

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each weight that has its own, by name."""
        return {
            f"loss.terms.{name}.{part}": rate for name, term in self._named() for part, rate in term.rates().items()
        }

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the terms' buffers by name; a resumed run needs them besides the trained weights."""
        return dict(self.named_buffers())

    def _named(self) -> list[tuple[str, Term]]:
        return list(self.terms.items())  # type: ignore[arg-type]
