"""PromCSE's energy-based hinge over the views of a batch of triplets."""

from __future__ import annotations

import torch

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.cosine import cosines
from cse.objectives.energy_hinge import energy_hinge
from cse.training.batch import Batch
from cse.training.terms.term import Term


class EnergyHinge(Term):
    """Hinge on raw cosines against the hardest negative (PromCSE equation 11).

    Args:
        encoder: the encoder being trained.
        weight: weight of this term.
        margin: cosine by which a positive must beat every negative.
    """

    def __init__(self, encoder: SentenceEncoder, *, weight: float, margin: float) -> None:
        super().__init__(encoder, weight=weight)
        self.margin = margin

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean over the anchors."""
        anchor_BD, positive_BD, negative_BD = batch.views
        return energy_hinge(cosines(anchor_BD, positive_BD), cosines(anchor_BD, negative_BD), margin=self.margin)
