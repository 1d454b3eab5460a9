"""BERT-whitening (Su et al. 2021, equations 3 to 5): ``y = (x - mu) W`` with ``W = U S^(-1/2)``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cse.errors import CseError
from cse.model.post.vectors import NO_VARIANCE, blocks, check_finite, count_distinct, mean_vector


class Whitening(nn.Module):
    """A fitted linear map of sentence vectors; all zeros until weights are loaded.

    Args:
        width: input width D.
        dimension: output width d, at most ``width``.

    Attributes:
        mean: ``(D,)``, mean of the vectors it was fitted on.
        matrix: ``(D, d)``, directions in order of decreasing variance, each divided by its standard deviation.
    """

    def __init__(self, width: int, dimension: int) -> None:
        super().__init__()
        self.width = width
        self.dimension = dimension
        self.mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.matrix = nn.Parameter(torch.zeros(width, dimension), requires_grad=False)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map ``(B, D)`` to ``(B, d)``; not normalised."""
        return (x_BD - self.mean) @ self.matrix

    def config(self) -> dict[str, Any]:
        """Return what ``build_post`` needs, as JSON values."""
        return {"kind": "whitening", "width": self.width, "dimension": self.dimension}


def fit_whitening(vectors: NDArray[np.float32], dimension: int | None = None) -> Whitening:
    """Fit a whitening to sentence vectors, in float64.

    Outputs of a LayerNorm lie in a subspace (their scaled sum is constant), however many sentences there are. A
    direction without variance carries no information, so its column is zero; the published formula would amplify
    rounding errors to unit variance. Cosines use the remaining directions.

    Args:
        vectors: ``(n, D)``, one row per sentence.
        dimension: number of leading directions to keep, at most D; None: D.

    Raises:
        CseError: a dimension out of range, too few distinct sentences for it, or a non-finite vector.
    """
    width = vectors.shape[1]
    kept = kept_dimension(dimension, width)
    check_finite(vectors)
    mean_D, covariance_DD = _moments(vectors)
    directions_DD, variance_D, _ = np.linalg.svd(covariance_DD, hermitian=True)
    varies_D = variance_D > NO_VARIANCE * variance_D[0]
    rank = int(varies_D.sum())
    if rank < kept:
        _check_enough(vectors, kept, rank)
    # The sign of a direction is arbitrary; fix it so that the same data give the same vectors with every LAPACK.
    largest_D = np.abs(directions_DD).argmax(axis=0)
    directions_DD *= np.sign(directions_DD[largest_D, np.arange(width)])
    scale_D = np.zeros(width)
    scale_D[varies_D] = variance_D[varies_D] ** -0.5
    whitening = Whitening(width, kept)
    whitening.mean.copy_(torch.from_numpy(mean_D))
    whitening.matrix.copy_(torch.from_numpy((directions_DD * scale_D)[:, :kept]))
    return whitening.eval()


def kept_dimension(dimension: int | None, width: int) -> int:
    """Return how many of ``width`` directions to keep; None keeps all.

    Raises:
        CseError: ``dimension`` is out of range.
    """
    kept = width if dimension is None else dimension
    if not 1 <= kept <= width:
        raise CseError(f"post.dimension: {kept} is not between 1 and {width}, the encoder's width")
    return kept


def _moments(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean ``(D,)`` and covariance ``(D, D)`` over n - 1, like ``np.cov``; two passes avoid cancellation."""
    mean_D = mean_vector(vectors)
    sum_DD = np.zeros((len(mean_D), len(mean_D)))
    for block in blocks(vectors):
        centred = block - mean_D
        sum_DD += centred.T @ centred
    return mean_D, sum_DD / max(len(vectors) - 1, 1)


def _check_enough(vectors: NDArray[np.float32], kept: int, rank: int) -> None:
    """Raise a CseError if too few distinct sentences are the reason why fewer than ``kept`` directions vary."""
    found = count_distinct(vectors, kept + 1)
    if found <= kept:
        lower = f" or set post.dimension to {rank} or less" if rank else ""
        raise CseError(
            f"post.kind: whitening to {kept} dimensions needs more than {kept} distinct sentences, found {found}; "
            f"prepare more rows{lower}"
        )
