"""Contrastive Tension: two independent copies of the encoder (Carlsson et al. 2021)."""

from __future__ import annotations

import copy

import torch

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.contrastive_tension import contrastive_tension
from cse.training.batch import Batch, embed_anchors
from cse.training.terms.term import Term


class ContrastiveTension(Term):
    """Two independent copies, dot products, one positive among negatives (Carlsson et al. 2021).

    The first copy encodes the anchors and is kept after training; the second encodes the candidates.

    Args:
        group: rows in a group of one positive and its negatives.
    """

    def __init__(self, encoder: SentenceEncoder, *, weight: float, group: int) -> None:
        super().__init__(encoder, weight=weight)
        self.group = group
        self.second = copy.deepcopy(encoder)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean binary cross-entropy; ignore an incomplete last group."""
        (first_BD, *_) = batch.views  # more views if another term compares copies
        second_BD = embed_anchors(self.second, batch)
        whole = len(first_BD) // self.group * self.group
        if whole == 0:
            return (first_BD.sum() + second_BD.sum()) * 0.0
        return contrastive_tension(first_BD[:whole], second_BD[:whole], group=self.group)
