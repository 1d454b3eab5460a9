r"""SG-OPT (Kim et al. 2021, "Self-Guided Contrastive Learning for BERT Sentence Representations").

With ``c_i`` the projected ``[CLS]`` of the tuned model, ``h_ik`` the projected mean of layer ``k`` of a frozen clone,
and ``phi(a, b) = exp(cos(a, b) / t)``::

    L     = mean_{i, k} -log( phi(c_i, h_ik) / ( phi(c_i, h_ik) + sum_{m != i} sum_n phi(c_i, h_mn) ) )
    L_reg = || weights - initial ||^2

Neither other layers of the same sentence nor other anchors are negatives (the paper's third optimisation).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cse.objectives.cosine import cosines
from cse.objectives.precision import in_float32


@in_float32
def self_guided(anchor_BD: torch.Tensor, views_KBD: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Return the contrastive term, a scalar in nats.

    Args:
        anchor_BD: projected ``[CLS]`` of the tuned model.
        views_KBD: projected pooled states of the clone, ``K`` layers of the same ``B`` sentences.
    """
    layers, rows, _ = views_KBD.shape
    logits_BKB = cosines(anchor_BD, views_KBD.flatten(0, 1)).view(rows, layers, rows) / temperature
    positive_BK = logits_BKB.diagonal(dim1=0, dim2=2).T
    own_B1B = torch.eye(rows, dtype=torch.bool, device=logits_BKB.device)[:, None, :]
    negative_BN = logits_BKB.masked_fill(own_B1B, float("-inf")).flatten(1)
    # the sum includes the positive, so it is never empty, not even in a batch of one sentence
    candidate_BKN = torch.cat([positive_BK[:, :, None], negative_BN[:, None, :].expand(-1, layers, -1)], dim=2)
    return (candidate_BKN.logsumexp(dim=2) - positive_BK).mean()


def squared_distance(weights: Sequence[torch.Tensor], initial: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of squared differences, a scalar; half precision is cast to float32, 0 for no tensors.

    Args:
        initial: their initial values, in the same order.
    """
    return sum((_squares(now, then) for now, then in zip(weights, initial, strict=True)), torch.zeros(()))


@in_float32
def _squares(now: torch.Tensor, then: torch.Tensor) -> torch.Tensor:
    return (now - then).square().sum()
