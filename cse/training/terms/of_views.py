"""The term of a loss that needs the embeddings of a batch and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch

from cse.model.sentence_encoder import SentenceEncoder
from cse.training.batch import Batch
from cse.training.terms.term import Term


class OfViews(Term):
    """An equation of the views of a batch: anchors, positives and, if the rows have them, hard negatives.

    Args:
        equation: takes each view ``(B, D)`` by place and ``values`` by name, and returns a scalar. Workers share one
            that takes ``anchors``, a slice of the rows, and returns their part of the mean; all compute another whole.
        values: the equation's constants.
    """

    def __init__(
        self, encoder: SentenceEncoder, equation: Callable[..., torch.Tensor], *, weight: float, **values: Any
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.equation = partial(equation, **values)
        self.shared = "anchors" in signature(equation).parameters

    @property
    def from_tensors(self) -> bool:
        """True."""
        return True

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the equation's value."""
        if not self.shared:
            return self.equation(*batch.views)
        rows = len(batch.rows)
        return batch.group.over_blocks(self.equation(*batch.views, anchors=batch.group.block(rows)), rows)
