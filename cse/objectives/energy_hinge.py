r"""The energy-based hinge of PromCSE (Jiang et al. 2022, equations 9 to 11).

With ``p_i = cos(z1_i, z2_i)`` and the hardest of the ``2N - 1`` negatives of row ``i``::

    n_i = max( max_{j != i} cos(z1_i, z2_j), max_j cos(z1_i, z3_j) )
    L   = mean_i max(0, m + n_i - p_i)

Cosines are raw (not divided by the temperature); gradient flows through ``p_i`` and the hardest negative.
"""

from __future__ import annotations

import torch


def energy_hinge(
    positive_BN: torch.Tensor, negative_BN: torch.Tensor, *, margin: float, first: int = 0
) -> torch.Tensor:
    """Return the loss, a scalar.

    Args:
        positive_BN: cosines between ``B`` anchors and ``N >= B`` candidate positives.
        negative_BN: cosines between the anchors and every row's hard negative, including the anchor's own.
        margin: cosine by which the positive must beat the hardest negative.
        first: column of anchor 0's own positive, for anchors that are a slice of a larger gathered batch.
    """
    rows = torch.arange(positive_BN.shape[0], device=positive_BN.device)
    own_mask = torch.zeros_like(positive_BN, dtype=torch.bool)
    own_mask[rows, rows + first] = True
    in_batch_BN = positive_BN.masked_fill(own_mask, float("-inf"))
    hardest_B = torch.cat([in_batch_BN, negative_BN], dim=1).amax(dim=1)
    return (margin + hardest_B - positive_BN[rows, rows + first]).clamp(min=0).mean()
