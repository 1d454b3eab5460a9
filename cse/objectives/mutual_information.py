r"""Mutual information between tokens and sentences (IS-BERT, Zhang et al. 2020, equation 2).

With ``t_nb = token_n . sentence_b``, ``softplus(x) = log(1 + exp(x))`` and the means taken over pairs of a real token
and a sentence of the batch::

    I = mean_{n in b} -softplus(-t_nb)  -  mean_{n not in b} softplus(t_nb)
    L = -I

This is the Jensen-Shannon estimator as printed in the paper, without a constant: ``L >= 0``, and ``L = 2 log 2`` for
uninformative scores (``t = 0``). The released code computes ``L - 2 log 2``, with the same gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.precision import in_float32


@in_float32
def local_global_information(local_BLD: torch.Tensor, global_BD: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
    """Return the negated estimate, a scalar in nats.

    A batch of fewer than two sentences (perhaps the last of an epoch) has no negatives, so its loss is 0 with zero
    gradient, as for NT-Xent. Positives alone would only lengthen all vectors.

    Args:
        local_BLD: token features.
        global_BD: sentence vectors.
        mask_BL: 1 or True at real tokens. Rows of padding only are ignored.
    """
    kept_B = mask_BL.bool().any(dim=1)
    local_BLD, global_BD, real_BL = local_BLD[kept_B], global_BD[kept_B], mask_BL.bool()[kept_B]
    if len(global_BD) < 2:
        return local_BLD[:0].sum() + global_BD[:0].sum()
    token_ND, sentence_N = local_BLD[real_BL], real_BL.nonzero()[:, 0]
    score_NB = token_ND @ global_BD.T
    own_NB = F.one_hot(sentence_N, len(global_BD)).bool()
    # softplus(x) as -logsigmoid(-x): torch's softplus is rounded to x above 20
    return -F.logsigmoid(score_NB[own_NB]).mean() - F.logsigmoid(-score_NB[~own_NB]).mean()
