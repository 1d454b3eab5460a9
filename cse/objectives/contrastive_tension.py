r"""Contrastive Tension (CT, Carlsson et al. 2021, figure in appendix A.1).

Two independent copies of a model read a sentence ``s``, itself and ``K`` other sentences ``s_k``. In each group of
``K + 1`` pairs ``(s, s), (s, s_1), ..., (s, s_K)``::

    x_k = first(s) . second(s_k)              plain dot product, neither cosine nor temperature
    L   = mean over pairs of -log sigmoid(x_k) if s_k is s, else -log sigmoid(-x_k)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.precision import in_float32


@in_float32
def contrastive_tension(first_BD: torch.Tensor, second_BD: torch.Tensor, *, group: int) -> torch.Tensor:
    """Return the mean binary cross-entropy, a scalar in nats.

    Args:
        first_BD: embeddings from the first copy, group after group; only the anchor, a group's first row, is used.
        second_BD: embeddings of the same sentences from the second copy, the candidates.
        group: rows per group, including the positive (8 in the paper).
    """
    rows = len(first_BD)
    if rows == 0 or rows % group != 0:
        raise ValueError(f"contrastive tension: {rows} rows do not divide into groups of {group}; drop the remainder")
    candidate_BND = second_BD.reshape(rows // group, group, -1)
    logits_BN = torch.einsum("bd,bnd->bn", first_BD[::group], candidate_BND)
    labels_BN = torch.zeros_like(logits_BN)
    labels_BN[:, 0] = 1.0
    return F.binary_cross_entropy_with_logits(logits_BN, labels_BN)
