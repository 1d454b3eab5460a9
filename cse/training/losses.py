"""What a step minimises: a weighted sum of terms, such as NT-Xent and the hinge (PromCSE equation 12)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from cse.training.batch import Batch
from cse.training.terms.term import Term


class Losses(nn.Module):
    """The whole loss of a system.

    Args:
        terms: by their settings keys, in the order in which they are added up.
    """

    def __init__(self, terms: Mapping[str, Term]) -> None:
        super().__init__()
        self.terms = nn.ModuleDict(terms)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return every unweighted term by name, and the weighted sum as ``loss``; each a scalar."""
        values, loss = {}, batch.projected_XD.new_zeros(())
        for name, term in self._named():
            values[name] = term(batch)
            loss = loss + term.weight(batch.step) * values[name]
        return values | {"loss": loss}

    def after_update(self, batch: Batch) -> None:
        """Let terms follow the encoder, whose weights were just updated with this batch."""
        for _, term in self._named():
            term.after_update(batch)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the weights that the optimiser updates beside the encoder's, by name."""
        return {f"loss.{name}": weight for name, weight in self.named_parameters() if weight.requires_grad}

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each weight that has one of its own, by name."""
        return {
            f"loss.terms.{name}.{part}": rate for name, term in self._named() for part, rate in term.rates().items()
        }

    def memory(self) -> dict[str, torch.Tensor]:
        """Return what a resumed run must have besides trained weights, by name: the buffers of the terms."""
        return dict(self.named_buffers())

    def _named(self) -> list[tuple[str, Term]]:
        return list(self.terms.items())  # type: ignore[arg-type]
