r"""NT-Xent on the first numbers of each vector, so that vectors may be cut (Matryoshka, Kusupati et al. 2022).

With ``z[:w]`` the first ``w`` numbers of the vectors, the mean over the widths (equation 1 with equal weights)::

    L = mean_w NT-Xent(z1[:w], z2[:w], z3[:w])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cse.losses.nt_xent import nt_xent
from cse.losses.shared import EVERY, Batch, Loss, cosines, rows_of
from cse.settings.objective import MatryoshkaSettings


def matryoshka(
    anchor_BD: torch.Tensor,
    positive_BD: torch.Tensor,
    negative_BD: torch.Tensor | None = None,
    *,
    widths: Sequence[int],
    temperature: float,
    anchors: slice = EVERY,
) -> torch.Tensor:
    """Return the loss, a scalar; of some ``anchors``, their part of the mean over all rows."""
    own_AD = rows_of(anchor_BD, anchors)
    losses = [
        nt_xent(
            cosines(own_AD[:, :width], positive_BD[:, :width]),
            None if negative_BD is None else cosines(own_AD[:, :width], negative_BD[:, :width]),
            temperature=temperature,
            first=anchors.start or 0,
        )
        for width in widths
    ]
    return torch.stack(losses).mean()


class Matryoshka(Loss[MatryoshkaSettings]):
    """The mean over the widths, of pairs or triplets."""

    from_tensors = True
    temperature = 0.05  # SimCSE's

    def forward(self, batch: Batch) -> torch.Tensor:
        def part(own: slice) -> torch.Tensor:
            return matryoshka(*batch.views, widths=self.settings.widths, temperature=self.temperature, anchors=own)

        return batch.group.over_blocks(len(batch.rows), part)
