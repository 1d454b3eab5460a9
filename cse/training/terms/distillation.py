"""Stay near the frozen backbone: its similarities are the target."""

from __future__ import annotations

import copy

import torch

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.distillation import similarity_divergence
from cse.training.batch import Batch
from cse.training.terms.term import Term


class Distillation(Term):
    """Keeps the similarities between rows as the bare backbone has them, without its prompt and without dropout.

    Args:
        encoder: the encoder being trained.
        weight: weight of this term.
        temperature: divides the cosines of both.
    """

    def __init__(self, encoder: SentenceEncoder, *, weight: float, temperature: float) -> None:
        super().__init__(encoder, weight=weight)
        backbone = encoder.backbone
        self.teacher = SentenceEncoder.bare(backbone.sibling() if encoder.frozen else copy.deepcopy(backbone))
        self.temperature = temperature

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the divergence of the embeddings' similarities from the teacher's."""
        self.teacher.eval()
        with torch.no_grad():
            constants = self.teacher.constants()
            parts = [self.teacher.embed(piece.ids_BL, piece.mask_BL, constants) for piece in batch.slices]
            teacher_XD = batch.in_order(parts).float()
        return similarity_divergence(batch.projected_XD, teacher_XD, rows=len(batch.rows), temperature=self.temperature)
