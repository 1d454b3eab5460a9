r"""NT-Xent on the first numbers of each vector, so that vectors may be cut (Matryoshka, Kusupati et al. 2022).

With ``z[:w]`` the first ``w`` numbers of the vectors, the mean over the widths (equation 1 with equal weights)::

    L = mean_w NT-Xent(z1[:w], z2[:w], z3[:w])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cse.objectives.cosine import EVERY, cosines, rows_of
from cse.objectives.nt_xent import nt_xent


def matryoshka(
    anchor_BD: torch.Tensor,
    positive_BD: torch.Tensor,
    negative_BD: torch.Tensor | None = None,
    *,
    widths: Sequence[int],
    temperature: float,
    hard_negative_weight: float,
    anchors: slice = EVERY,
) -> torch.Tensor:
    """Return the loss, a scalar.

    Args:
        negative_BD: embeddings of their hard negatives, or None.
        widths: numbers of dimensions, each below ``D``.
        hard_negative_weight: added to the logit of a row's own hard negative.
        anchors: which rows are; the value is their part of the mean over all.
    """
    own_AD = rows_of(anchor_BD, anchors)
    losses = [
        nt_xent(
            cosines(own_AD[:, :width], positive_BD[:, :width]),
            None if negative_BD is None else cosines(own_AD[:, :width], negative_BD[:, :width]),
            temperature=temperature,
            hard_negative_weight=hard_negative_weight,
            first=anchors.start or 0,
        )
        for width in widths
    ]
    return torch.stack(losses).mean()
