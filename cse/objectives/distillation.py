r"""Stay near a teacher: its distribution of a row's similarity over the rows of a batch is the target.

With ``s_ij`` the student's cosine between texts ``i`` and ``j`` and ``t_ij`` the teacher's, over the texts ``j`` that
stand in another row than ``i``::

    L = mean_i sum_j p_ij (log p_ij - log q_ij),  p_i = softmax_j(t_ij / tau),  q_i = softmax_j(s_ij / tau)

The form is SEED's (Fang et al. 2021, equation 3), with the batch in place of its queue. Texts of one row are left out:
what a row says of its own texts is for the contrastive terms to learn.
"""

from __future__ import annotations

import torch

from cse.objectives.cosine import cosines
from cse.objectives.precision import in_float32


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
