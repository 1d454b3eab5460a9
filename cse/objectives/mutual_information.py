r"""Mutual information between tokens and sentences (IS-BERT, Zhang et al. 2020, equation 2).

With ``t_nb = token_n . sentence_b``, ``softplus(x) = log(1 + exp(x))`` and the means taken over pairs of a real token
and a sentence of the batch::

    I = mean_{n in b} -softplus(-t_nb)  -  mean_{n not in b} softplus(t_nb)
    L = -I

This is the Jensen-Shannon estimator as the paper prints it, without a constant: ``L >= 0``, and ``L = 2 log 2`` where
the scores say nothing (``t = 0``). The loss of the released code is ``L - 2 log 2``; the gradient is the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.precision import in_float32


@in_float32
def local_global_information(local_BLD: torch.Tensor, global_BD: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
    """Return the negative estimate, a scalar in nats.

    A batch of fewer than two sentences (the last of an epoch, perhaps) has no negatives: its loss is 0 with zero
    gradient, as NT-Xent's is. Positives alone would only make all vectors longer.

    Args:
        local_BLD: features of the tokens.
        global_BD: vectors of the sentences.
        mask_BL: 1 or True at real tokens. A row of padding alone is no sentence and is left out.
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
