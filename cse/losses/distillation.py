r"""Stay near a teacher: its distribution of a row's similarity over the rows of a batch is the target.

With ``s_ij`` the student's cosine between texts ``i`` and ``j`` and ``t_ij`` the teacher's, over the texts ``j`` that
stand in another row than ``i``::

    L = mean_i sum_j p_ij (log p_ij - log q_ij),  p_i = softmax_j(t_ij / tau),  q_i = softmax_j(s_ij / tau)

The form is SEED's (Fang et al. 2021, equation 3), with the batch in place of its queue. Texts of one row are left out:
what a row says of its own texts is for the contrastive losses to learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from cse.losses.shared import Batch, Loss, cosines, in_float32
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import DistillationSettings


@in_float32
def similarity_divergence(
    student_XD: torch.Tensor, teacher_XD: torch.Tensor, *, rows: int, temperature: float
) -> torch.Tensor:
    """Return the mean Kullback-Leibler divergence of the student from the teacher, a scalar in nats.

    Args:
        student_XD: vectors of all texts of a batch, view after view; text ``i`` stands in row ``i % rows``.
        teacher_XD: the teacher's vectors of the same texts; their width may differ.
        rows: rows of the batch; 0 is returned for a single one, which has no other row to be similar to.
    """
    if rows < 2:
        return 0.0 * student_XD.sum()
    row_X = torch.arange(len(student_XD), device=student_XD.device) % rows
    own_XX = row_X[:, None] == row_X[None, :]
    teacher, student = (
        (cosines(vectors, vectors) / temperature).masked_fill(own_XX, float("-inf")).log_softmax(dim=1)
        for vectors in (teacher_XD, student_XD)
    )
    apart = (teacher - student).masked_fill(own_XX, 0.0)  # -inf minus -inf is not a number
    return (teacher.exp() * apart).sum(dim=1).mean()


class Distillation(Loss[DistillationSettings]):
    """Pulls the similarities between rows to those of teachers, which read them without dropout.

    Args:
        teachers: encoders that read the encoder's token ids, at least one; the mean of their cosines is the target.
    """

    def __init__(
        self, encoder: SentenceEncoder, settings: DistillationSettings, teachers: Sequence[SentenceEncoder]
    ) -> None:
        super().__init__(encoder, settings)
        self.teachers = nn.ModuleList(teacher.requires_grad_(False) for teacher in teachers)

    def forward(self, batch: Batch) -> torch.Tensor:
        self.teachers.eval()
        with torch.no_grad():
            # the cosine of unit vectors laid end to end is the mean of their cosines
            teacher_XD = torch.cat([F.normalize(_embed(teacher, batch)) for teacher in self.teachers], dim=1)
        temperature = self.settings.temperature
        return similarity_divergence(batch.projected_XD, teacher_XD, rows=len(batch.rows), temperature=temperature)


def _embed(teacher: nn.Module, batch: Batch) -> torch.Tensor:
    assert isinstance(teacher, SentenceEncoder)  # noqa: S101
    constants = teacher.constants()
    return batch.layout.join([teacher.embed(piece.ids_BL, piece.mask_BL, constants) for piece in batch.slices]).float()
