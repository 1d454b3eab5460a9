"""Learn a teacher's similarities; with the bare backbone as the teacher, the model stays near it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.distillation import similarity_divergence
from cse.training.batch import Batch
from cse.training.terms.term import Term


class Distillation(Term):
    """Pulls the similarities between rows to those of a teacher, which reads them without dropout.

    Args:
        teachers: encoders that read its token ids, at least one; the mean of their cosines is the target.
    """

    def __init__(
        self, encoder: SentenceEncoder, teachers: Sequence[SentenceEncoder], *, weight: float, temperature: float
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.teachers = nn.ModuleList(teacher.requires_grad_(False) for teacher in teachers)
        self.temperature = temperature

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the divergence of the embeddings' similarities from the teachers'."""
        self.teachers.eval()
        with torch.no_grad():
            # the cosine of unit vectors laid end to end is the mean of their cosines
            teacher_XD = torch.cat([F.normalize(self._embed(teacher, batch)) for teacher in self.teachers], dim=1)
        return similarity_divergence(batch.projected_XD, teacher_XD, rows=len(batch.rows), temperature=self.temperature)

    @staticmethod
    def _embed(teacher: nn.Module, batch: Batch) -> torch.Tensor:
        assert isinstance(teacher, SentenceEncoder)  # noqa: S101
        constants = teacher.constants()
        return batch.in_order([teacher.embed(piece.ids_BL, piece.mask_BL, constants) for piece in batch.slices]).float()
