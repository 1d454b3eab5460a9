r"""Supervised contrastive loss: every other row of the label is a positive (Khosla et al. 2020, equation 2, L_out).

For row ``i`` with positives ``P(i)``, the other rows of its label, and cosines divided by a temperature ``t``::

    L = mean_i -1/|P(i)| sum_{p in P(i)} log( exp(cos(z_i, z_p) / t) / sum_{a != i} exp(cos(z_i, z_a) / t) )

The mean is over rows that have a positive. A batch may hold any number of rows of a label, unlike NT-Xent's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.losses.shared import EVERY, UNLABELLED, Batch, Loss, in_float32, rows_of
from cse.settings.objective import SupervisedContrastiveSettings


@in_float32
def supervised_contrastive(
    z_BD: torch.Tensor, label_B: torch.Tensor, temperature: float, anchors: slice = EVERY
) -> torch.Tensor:
    """Return the loss, a scalar, 0 where no row has a positive; of some ``anchors``, their part of the mean.

    A row without a label (``UNLABELLED``) is a negative only.
    """
    z_BD = F.normalize(z_BD, dim=1)
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
    alike = F.pad(sorted_B[1:] == sorted_B[:-1], (1, 1))  # with the row before, for each and the end
    return ((alike[1:] | alike[:-1]) & (sorted_B != UNLABELLED)).sum()


class SupervisedContrastive(Loss[SupervisedContrastiveSettings]):
    """The loss over both texts of each pair."""

    from_tensors = True
    temperature = 0.1  # Khosla et al. 2020

    def forward(self, batch: Batch) -> torch.Tensor:
        assert batch.labels_B is not None  # noqa: S101 - the settings allow this loss only with labelled texts
        z_BD, label_B, temperature = torch.cat(batch.views[:2]), batch.labels_B.repeat(2), self.temperature
        return batch.group.over_blocks(len(z_BD), lambda own: supervised_contrastive(z_BD, label_B, temperature, own))
