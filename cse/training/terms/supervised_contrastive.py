"""Contrast by labels: all texts of a label in the batch are each other's positives."""

from __future__ import annotations

import torch

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.supervised_contrastive import supervised_contrastive
from cse.training.batch import Batch
from cse.training.terms.term import Term


class SupervisedContrastive(Term):
    """L_out of Khosla et al. 2020 over both texts of each pair, by the labels of the main source.

    A batch may hold any number of rows of a label, unlike NT-Xent's.

    Args:
        encoder: the encoder being trained.
        weight: weight of this term.
        temperature: cosines are divided by it.
    """

    def __init__(self, encoder: SentenceEncoder, *, weight: float, temperature: float) -> None:
        super().__init__(encoder, weight=weight)
        self.temperature = temperature

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean over the texts that have a positive."""
        assert batch.labels_B is not None  # noqa: S101 - the settings allow this term only with labelled texts
        z_BD, rows = torch.cat(batch.views[:2]), 2 * len(batch.rows)
        part = supervised_contrastive(z_BD, batch.labels_B.repeat(2), self.temperature, batch.group.block(rows))
        return batch.group.over_blocks(part, rows)
