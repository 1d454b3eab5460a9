"""What a step minimises: contrastive terms over the views, and terms that run passes of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cse.objectives.combine import Objective
from cse.training.batch import Batch


class Term(nn.Module):
    """A term of the loss that needs more than the views' embeddings; owns what only training needs.

    Attributes:
        name: of the term in logs.
        coefficient: its weight in the loss.
    """

    name: str

    def __init__(self, coefficient: float) -> None:
        super().__init__()
        self.coefficient = coefficient

    def weight(self, step: int) -> float:
        """Return the weight of the term after ``step`` updates."""
        return self.coefficient

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each own weight that does not take the run's, by name."""
        return {}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the unweighted term, a scalar."""
        raise NotImplementedError


class NegativeQueue(nn.Module):
    """Further negatives for the contrastive term, from earlier batches."""

    def negatives(self) -> torch.Tensor | None:
        """Return embeddings ``(Q, D)`` without gradient, or None before the first batch."""
        raise NotImplementedError

    def after_update(self, batch: Batch) -> None:
        """Take in what the updated encoder makes of a batch."""
        raise NotImplementedError


class Losses(nn.Module):
    """The whole loss of a system.

    Args:
        objective: terms over the views' embeddings.
        terms: terms with passes or weights of their own.
        queue: further negatives.
    """

    def __init__(self, objective: Objective, terms: Sequence[Term] = (), queue: NegativeQueue | None = None) -> None:
        super().__init__()
        self.objective = objective
        self.terms = nn.ModuleDict({term.name: term for term in terms})
        self.queue = queue

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return every unweighted term by name, and the weighted sum as ``loss``; each a scalar."""
        values = self.objective(batch.views, None if self.queue is None else self.queue.negatives())
        loss = values.pop("loss")
        for name, term in self.terms.items():
            values[name] = term(batch)
            loss = loss + term.weight(batch.step) * values[name]  # type: ignore[operator]
        return values | {"loss": loss}

    def after_update(self, batch: Batch) -> None:
        """Let the queue follow the encoder."""
        if self.queue is not None:
            self.queue.after_update(batch)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the weights that the optimiser updates beside the encoder's, by name."""
        return {f"loss.{name}": weight for name, weight in self.named_parameters() if weight.requires_grad}

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each weight that has one of its own, by name."""
        return {
            f"loss.terms.{name}.{part}": rate
            for name, term in self.terms.items()
            for part, rate in term.rates().items()  # type: ignore[operator]
        }

    def memory(self) -> dict[str, torch.Tensor]:
        """Return what a resumed run must have besides trained weights, by name: the buffers of queue and terms."""
        return dict(self.named_buffers())
