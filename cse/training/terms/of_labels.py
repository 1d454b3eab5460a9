"""The term of a loss that needs the embeddings of a batch and their labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cse.model.sentence_encoder import SentenceEncoder
from cse.training.batch import Batch
from cse.training.terms.term import Term


class OfLabels(Term):
    """An equation of both texts of each pair and the labels of the main source.

    A batch may hold any number of rows of a label, unlike NT-Xent's.

    Args:
        encoder: the encoder being trained.
        equation: takes embeddings ``(2B, D)`` and labels ``(2B,)`` by place, ``values`` and ``anchors``, a slice of the
            rows, by name, and returns the anchors' part of a mean over all rows or pairs.
        weight: weight of this term.
        values: the equation's constants.
    """

    def __init__(
        self, encoder: SentenceEncoder, equation: Callable[..., torch.Tensor], *, weight: float, **values: Any
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.equation = partial(equation, **values)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the equation's value."""
        assert batch.labels_B is not None  # noqa: S101 - the settings allow this term only with labelled texts
        z_BD, rows = torch.cat(batch.views[:2]), 2 * len(batch.rows)
        part = self.equation(z_BD, batch.labels_B.repeat(2), anchors=batch.group.block(rows))
        return batch.group.over_blocks(part, rows)
