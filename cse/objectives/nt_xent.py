r"""NT-Xent, the contrastive cross-entropy of SimCSE (Gao et al. 2021, equations 1 and 5).

With ``s_ij = cos(z1_i, z2_j)``, ``h_ij = cos(z1_i, z3_j)`` and temperature ``t``::

    L = mean_i -log( exp(s_ii / t) / ( sum_j exp(s_ij / t) + sum_j w_ij exp(h_ij / t) ) )
    w_ij = exp(hard_negative_weight) where i == j, else 1

Anchor to copy only: no symmetric term and no negatives from the anchor's own view. Without ``z3`` the second sum is
absent (unsupervised by dropout, or pairs).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def nt_xent(
    positive_BN: torch.Tensor,
    negative_BN: torch.Tensor | None = None,
    *,
    temperature: float,
    hard_negative_weight: float = 0.0,
    first: int = 0,
) -> torch.Tensor:
    """Return the loss, a scalar.

    Args:
        positive_BN: cosines between ``B`` anchors and ``N >= B`` candidate positives.
        negative_BN: cosines between the anchors and every row's hard negative, or None.
        temperature: divides the cosines.
        hard_negative_weight: added to the logit of a row's own hard negative; the log of its weight.
        first: column of anchor 0's own positive, for anchors that are a slice of a larger gathered batch.
    """
    rows = torch.arange(positive_BN.shape[0], device=positive_BN.device)
    own = rows + first
    logits = positive_BN / temperature
    if negative_BN is not None:
        negative_logits = negative_BN / temperature
        if hard_negative_weight != 0.0:
            weight = torch.zeros_like(negative_logits)
            weight[rows, own] = hard_negative_weight
            negative_logits = negative_logits + weight
        logits = torch.cat([logits, negative_logits], dim=1)
    return F.cross_entropy(logits, own)
