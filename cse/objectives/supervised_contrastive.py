"""Supervised contrastive loss: every other row of the label is a positive."""

from __future__ import annotations

import torch

from cse.objectives.label_proxies import UNLABELLED
from cse.objectives.precision import in_float32


@in_float32
def supervised_contrastive(z_BD: torch.Tensor, label_B: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the loss of a batch, the mean over rows that have a positive; 0 where none has.

    For row i with positives P(i), the other rows of its label,
    ``-1/|P(i)| sum_{p in P(i)} log(exp(cos(i, p) / t) / sum_{a != i} exp(cos(i, a) / t))``: L_out of Khosla et al.
    2020, "Supervised Contrastive Learning", equation 2.

    Args:
        z_BD: embeddings ``(batch, D)``, of any length.
        label_B: number of each row's label ``(batch,)``; a row without one (``UNLABELLED``) is a negative only.
        temperature: t.
    """
    z_BD = torch.nn.functional.normalize(z_BD, dim=1)
    itself_BB = torch.eye(len(z_BD), dtype=torch.bool, device=z_BD.device)
    logit_BB = (z_BD @ z_BD.T / temperature).masked_fill(itself_BB, -torch.inf)
    positive_BB = (label_B[:, None] == label_B[None]) & (label_B != UNLABELLED) & ~itself_BB
    count_B = positive_BB.sum(dim=1)
    log_share_BB = (logit_BB - logit_BB.logsumexp(dim=1, keepdim=True)).masked_fill(~positive_BB, 0.0)
    loss_B = -log_share_BB.sum(dim=1) / count_B.clamp(min=1)
    return loss_B.sum() / (count_B > 0).sum().clamp(min=1)
