"""Supervised contrastive loss: every other row of the label is a positive."""

from __future__ import annotations

import torch

from cse.objectives.cosine import EVERY, rows_of
from cse.objectives.label_proxies import UNLABELLED
from cse.objectives.precision import in_float32


@in_float32
def supervised_contrastive(
    z_BD: torch.Tensor, label_B: torch.Tensor, temperature: float, anchors: slice = EVERY
) -> torch.Tensor:
    """Return the loss of a batch, the mean over rows that have a positive; 0 where none has.

    For row i with positives P(i), the other rows of its label,
    ``-1/|P(i)| sum_{p in P(i)} log(exp(cos(i, p) / t) / sum_{a != i} exp(cos(i, a) / t))``: L_out of Khosla et al.
    2020, "Supervised Contrastive Learning", equation 2.

    Args:
        z_BD: embeddings ``(batch, D)``, of any length.
        label_B: number of each row's label ``(batch,)``; a row without one (``UNLABELLED``) is a negative only.
        anchors: which rows are; the value is their part of the mean over all.
    """
    z_BD = torch.nn.functional.normalize(z_BD, dim=1)
    place_B = torch.arange(len(z_BD), device=z_BD.device)
    other_AB = place_B[anchors][:, None] != place_B
    logit_AB = (rows_of(z_BD, anchors) @ z_BD.T / temperature).masked_fill(~other_AB, -torch.inf)
    positive_AB = (label_B[anchors][:, None] == label_B) & (label_B != UNLABELLED) & other_AB
    log_share_AB = (logit_AB - logit_AB.logsumexp(dim=1, keepdim=True)).masked_fill(~positive_AB, 0.0)
    loss_A = -log_share_AB.sum(dim=1) / positive_AB.sum(dim=1).clamp(min=1)
    return loss_A.sum() / _with_positive(label_B).clamp(min=1)


def _with_positive(label_B: torch.Tensor) -> torch.Tensor:
    """Return how many rows share their label with another, a scalar; without waiting for the device."""
    sorted_B = label_B.sort().values
    alike = torch.nn.functional.pad(sorted_B[1:] == sorted_B[:-1], (1, 1))  # with the row before, for each and the end
    return ((alike[1:] | alike[:-1]) & (sorted_B != UNLABELLED)).sum()
