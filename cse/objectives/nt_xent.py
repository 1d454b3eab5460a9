r"""NT-Xent, the contrastive cross-entropy of SimCSE (Gao et al. 2021, equations 1 and 5) and of SimCLR.

With ``s_ij = cos(z1_i, z2_j)``, ``h_ij = cos(z1_i, z3_j)``, ``g_iq = cos(z1_i, m_q)`` and temperature ``t``::

    L = mean_i -log( exp(s_ii / t) / ( sum_j exp(s_ij / t) + sum_j w_ij exp(h_ij / t) + sum_q exp(g_iq / t) ) )
    w_ij = exp(hard_negative_weight) where i == j, else 1

It runs from anchor to copy only: no symmetric term and no negatives from the anchor's own view. Without ``z3`` there is
no second sum (unsupervised by dropout, or pairs). The third sum is over the vectors ``m_q`` of ESimCSE's momentum queue
(Wu et al. 2022), if there is one.

SimCLR's form (Chen et al. 2020, equation 1; ConSERT, Mirror-BERT) uses every row of both views as an anchor and every
other row of both as a candidate. With ``z`` the ``2N`` rows and ``p(i)`` the other copy of row ``i``::

    L = mean_{i <= 2N} -log( exp(cos(z_i, z_p(i)) / t) / sum_{j != i} exp(cos(z_i, z_j) / t) )
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.cosine import EVERY, cosines, rows_of
from cse.objectives.precision import in_float32


def nt_xent(
    positive_AB: torch.Tensor,
    negative_AB: torch.Tensor | None = None,
    *,
    temperature: float,
    hard_negative_weight: float = 0.0,
    queue_AQ: torch.Tensor | None = None,
    first: int = 0,
) -> torch.Tensor:
    """Return the loss, a scalar; of a block of anchors, its part of the mean over all rows.

    Args:
        positive_AB: cosines between the anchors and every row's positive; a block of ``A`` rows, or all.
        negative_AB: cosines between the anchors and every row's hard negative, or None.
        hard_negative_weight: added to the logit of a row's own hard negative; the log of its weight.
        queue_AQ: cosines between the anchors and ``Q`` further negatives that belong to no row, or None.
        first: row of the first anchor.
    """
    anchors, rows = positive_AB.shape
    place_A = torch.arange(anchors, device=positive_AB.device)
    logits = positive_AB / temperature
    if negative_AB is not None:
        negative_logits = negative_AB / temperature
        if hard_negative_weight != 0.0:
            weight = torch.zeros_like(negative_logits)
            weight[place_A, place_A + first] = hard_negative_weight
            negative_logits = negative_logits + weight
        logits = torch.cat([logits, negative_logits], dim=1)
    if queue_AQ is not None:
        logits = torch.cat([logits, queue_AQ / temperature], dim=1)
    return F.cross_entropy(logits, place_A + first) * (anchors / rows)


@in_float32
def nt_xent_two_views(
    first_BD: torch.Tensor, second_BD: torch.Tensor, *, temperature: float, anchors: slice = EVERY
) -> torch.Tensor:
    """Return SimCLR's loss, a scalar: ``2B`` anchors with ``2B - 1`` candidates each.

    Args:
        first_BD: embeddings of one copy of each row.
        second_BD: embeddings of the other copy, in the same order.
        anchors: which of the ``2B`` rows, first copies first; the value is their part of the mean over all.
    """
    rows = len(first_BD)
    both_ND = torch.cat([first_BD, second_BD])
    place_A = torch.arange(2 * rows, device=both_ND.device)[anchors]
    logits_AN = cosines(rows_of(both_ND, anchors), both_ND) / temperature
    itself_AN = torch.zeros_like(logits_AN, dtype=torch.bool).scatter_(1, place_A[:, None], True)
    loss = F.cross_entropy(logits_AN.masked_fill(itself_AN, float("-inf")), (place_A + rows) % (2 * rows))
    return loss * (len(place_A) / (2 * rows))
