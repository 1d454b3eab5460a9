r"""The energy-based hinge of PromCSE (Jiang et al. 2022, equations 9 to 11).

With ``p_i = cos(z1_i, z2_i)`` and the hardest of the ``2N - 1`` negatives of row ``i``::

    n_i = max( max_{j != i} cos(z1_i, z2_j), max_j cos(z1_i, z3_j) )
    L   = mean_i max(0, m + n_i - p_i)

Cosines are raw (not divided by the temperature); gradient flows through ``p_i`` and the hardest negative.
"""

from __future__ import annotations

import torch

from cse.objectives.cosine import cosines


def energy_hinge(
    anchor_BD: torch.Tensor, positive_BD: torch.Tensor, negative_BD: torch.Tensor, *, margin: float
) -> torch.Tensor:
    """Return the loss, a scalar.

    Args:
        anchor_BD: embeddings of the anchors.
        positive_BD: embeddings of their positives.
        negative_BD: embeddings of their hard negatives.
        margin: cosine by which the positive must beat the hardest negative.
    """
    positive_BB, negative_BB = cosines(anchor_BD, positive_BD), cosines(anchor_BD, negative_BD)
    own_BB = torch.eye(len(anchor_BD), dtype=torch.bool, device=anchor_BD.device)
    in_batch_BB = positive_BB.masked_fill(own_BB, float("-inf"))
    hardest_B = torch.cat([in_batch_BB, negative_BB], dim=1).amax(dim=1)
    return (margin + hardest_B - positive_BB.diagonal()).clamp(min=0).mean()
