r"""The energy-based hinge of PromCSE (Jiang et al. 2022, equations 9 to 11).

With ``p_i = cos(z1_i, z2_i)`` and the hardest of the ``2N - 1`` negatives of row ``i``::

    n_i = max( max_{j != i} cos(z1_i, z2_j), max_j cos(z1_i, z3_j) )
    L   = mean_i max(0, m + n_i - p_i)

Cosines are raw (not divided by the temperature); gradient flows through ``p_i`` and the hardest negative.
"""

from __future__ import annotations

import torch

from cse.losses.shared import EVERY, Batch, Loss, cosines, rows_of
from cse.settings.objective import EnergyHingeSettings


def energy_hinge(
    anchor_BD: torch.Tensor,
    positive_BD: torch.Tensor,
    negative_BD: torch.Tensor,
    *,
    margin: float,
    anchors: slice = EVERY,
) -> torch.Tensor:
    """Return the loss, a scalar; of some ``anchors``, their part of the mean over all rows."""
    own_A1 = torch.arange(len(anchor_BD), device=anchor_BD.device)[anchors][:, None]
    positive_AB, negative_AB = (cosines(rows_of(anchor_BD, anchors), of) for of in (positive_BD, negative_BD))
    in_batch_AB = positive_AB.scatter(1, own_A1, float("-inf"))
    hardest_A = torch.cat([in_batch_AB, negative_AB], dim=1).amax(dim=1)
    beaten_A = (margin + hardest_A - positive_AB.gather(1, own_A1)[:, 0]).clamp(min=0)
    return beaten_A.mean() * (len(beaten_A) / len(anchor_BD))


class EnergyHinge(Loss[EnergyHingeSettings]):
    """The hinge over the triplets of a batch."""

    from_tensors = True

    def forward(self, batch: Batch) -> torch.Tensor:
        anchor_BD, positive_BD, negative_BD = batch.views
        margin = self.settings.margin
        return batch.group.over_blocks(
            len(batch.rows),
            lambda own: energy_hinge(anchor_BD, positive_BD, negative_BD, margin=margin, anchors=own),
        )
