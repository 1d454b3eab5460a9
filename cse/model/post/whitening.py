"""BERT-whitening (Su et al. 2021, equations 3 to 5): ``y = (x - mu) W`` with ``W = U S^(-1/2)``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError
from cse.model.post.linear import LinearMap, kept_dimension, with_fixed_signs
from cse.model.post.vectors import NO_VARIANCE, blocks, check_finite, count_distinct, mean_vector


def fit_whitening(vectors: NDArray[np.float32], dimension: int | None = None) -> LinearMap:
    """Fit a whitening to sentence vectors, in float64.

    Outputs of a LayerNorm lie in a subspace (their scaled sum is constant), however many sentences there are. A
    direction without variance carries no information, so its column is zero; the published formula would amplify
    rounding errors to unit variance. Cosines use the remaining directions.

    A column of the matrix is a direction of the vectors, in order of decreasing variance, over its standard deviation.

    Args:
        vectors: ``(n, D)``, one row per sentence.
        dimension: number of leading directions to keep, at most D; None: D.
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
    directions_DD = with_fixed_signs(directions_DD)
    scale_D = np.zeros(width)
    scale_D[varies_D] = variance_D[varies_D] ** -0.5
    return LinearMap.of("whitening", mean_D, (directions_DD * scale_D)[:, :kept])


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
