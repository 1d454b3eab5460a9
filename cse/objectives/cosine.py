"""Cosines between anchors and candidates, in float32 regardless of the encoder's precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.precision import in_float32

EVERY = slice(None)  # as anchors: all rows


def rows_of(values_B: torch.Tensor, anchors: slice) -> torch.Tensor:
    """Return the anchors' rows; all of them as they are, since a slice would change the order of sums of gradients."""
    start, stop, _ = anchors.indices(len(values_B))
    return values_B if stop - start == len(values_B) else values_B[anchors]


@in_float32
def cosines(anchor_BD: torch.Tensor, candidate_ND: torch.Tensor) -> torch.Tensor:
    """Return ``cos(anchor_i, candidate_j)`` as ``(B, N)``; float16 and bfloat16 inputs are cast to float32."""
    return F.normalize(anchor_BD, dim=-1) @ F.normalize(candidate_ND, dim=-1).T
