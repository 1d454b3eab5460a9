r"""Squared error of cosines: two texts of one label should have 1, two of different labels 0.

The loss of SetFit (Tunstall et al. 2022, section 3) over all pairs of a batch. With ``P`` the pairs of two rows of one
label and ``N`` those of two rows of different labels, both weighted alike however many there are::

    L = 1/2 mean_{(i, j) in P} (1 - cos(z_i, z_j))^2 + 1/2 mean_{(i, j) in N} cos(z_i, z_j)^2
"""

from __future__ import annotations

import torch

from cse.objectives.cosine import EVERY, cosines
from cse.objectives.label_proxies import UNLABELLED
from cse.objectives.precision import in_float32


@in_float32
def label_cosines(z_BD: torch.Tensor, label_B: torch.Tensor, *, anchors: slice = EVERY) -> torch.Tensor:
    """Return the loss of a batch, a scalar in 0 to 2.5; a kind of pairs that it lacks adds nothing.

    Args:
        z_BD: embeddings ``(batch, D)``, of any length.
        label_B: number of each row's label ``(batch,)``; a row without one (``UNLABELLED``) is in no pair.
        anchors: which rows are the first of a pair; the value is their part of the means over all pairs.
    """
    known_B = label_B != UNLABELLED
    place_B = torch.arange(len(z_BD), device=z_BD.device)
    alike_AB = label_B[anchors][:, None] == label_B
    pair_AB = known_B[anchors][:, None] & known_B & (place_B[anchors][:, None] != place_B)
    error_AB = cosines(z_BD[anchors], z_BD) - alike_AB.to(z_BD.dtype)
    sorted_B = label_B.sort().values
    like_B = torch.searchsorted(sorted_B, label_B, right=True) - torch.searchsorted(sorted_B, label_B)  # with itself
    within, between = ((like_B - 1) * known_B).sum(), ((known_B.sum() - like_B) * known_B).sum()
    square_AB = error_AB.square()
    near = (square_AB * (pair_AB & alike_AB)).sum() / within.clamp(min=1)
    far = (square_AB * (pair_AB & ~alike_AB)).sum() / between.clamp(min=1)
    return 0.5 * (near + far)
