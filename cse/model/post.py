"""Post-processing of sentence vectors, fitted on an encoder's vectors and applied to its output.

============ ============================================ ======================================
kind         what it does                                 source
============ ============================================ ======================================
whitening    linear: zero mean, identity covariance       Su et al. 2021, "BERT-whitening"
discriminant linear: identity covariance within labels    Fisher 1936; Friedman 1989
linear       a discriminant trained on by a loss          Khosla et al. 2020, "SupCon"
query_map    linear, D to D, of queries alone             the loss it is trained by
flow         invertible network towards ``N(0, I)``       Li et al. 2020; see ``cse.model.flow``
============ ============================================ ======================================

Here are the linear map and its two fits in closed form, in blocks: a million vectors are never copied at once.

BERT-whitening (equations 3 to 5): ``y = (x - mu) W`` with ``W = U S^(-1/2)``.

Linear discriminant analysis (Fisher 1936; Rao 1948), the directions in which labels differ most: ``S_b v = lambda S_w
v``, with the covariance ``S_b`` of the labels' means and the pooled covariance ``S_w`` within labels, shrunk towards a
multiple of the identity (Friedman 1989): ``(1 - s) S_w + s tr(S_w) / D I``. What varies within a label no longer counts
when vectors are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import nn

from cse.errors import CseError

QUERY_MAP = "query_map"
LABELLED_KINDS = ("discriminant", "linear")  # fitted on labelled texts
LINEAR_KINDS = ("whitening", *LABELLED_KINDS, QUERY_MAP)


class LinearMap(nn.Module):
    """``y = (x - mean) matrix``; all zeros until it is fitted or its weights are loaded.

    A column of the matrix ``(D, d)`` is a direction, the most important first.
    """

    def __init__(self, kind: str, width: int, dimension: int) -> None:
        super().__init__()
        self.kind, self.width, self.dimension = kind, width, dimension
        self.mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.matrix = nn.Parameter(torch.zeros(width, dimension), requires_grad=False)

    @classmethod
    def of(cls, kind: str, mean_D: NDArray[np.float64], matrix_Dd: NDArray[np.float64]) -> LinearMap:
        """Return the map of a mean and a matrix, rounded to float32, in evaluation mode."""
        fitted = cls(kind, *matrix_Dd.shape)
        fitted.mean.copy_(torch.from_numpy(mean_D))
        fitted.matrix.copy_(torch.from_numpy(matrix_Dd))
        return fitted.eval()

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map ``(B, D)`` to ``(B, d)``; not normalised."""
        return (x_BD - self.mean) @ self.matrix

    def as_layer(self) -> nn.Linear:
        """Return the same map as a layer, ``y = x matrix - mean matrix``; rounds more, as it centres last."""
        layer = nn.utils.skip_init(nn.Linear, self.width, self.dimension).requires_grad_(False)
        layer.weight.copy_(self.matrix.T)
        layer.bias.copy_(-(self.mean.double() @ self.matrix.double()))
        return layer

    def config(self) -> dict[str, Any]:
        """Return what ``build_post`` needs, as JSON values."""
        return {"kind": self.kind, "width": self.width, "dimension": self.dimension}


def with_fixed_signs(directions_DN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return directions whose largest component is positive: the same with every LAPACK, which may return either."""
    largest_N = np.abs(directions_DN).argmax(axis=0)
    return np.asarray(directions_DN * np.sign(directions_DN[largest_N, np.arange(directions_DN.shape[1])]))


def kept_dimension(dimension: int | None, width: int) -> int:
    """Return how many of ``width`` directions to keep; None keeps all."""
    kept = width if dimension is None else dimension
    if not 1 <= kept <= width:
        raise CseError(f"post.dimension: {kept} is not between 1 and {width}, the encoder's width")
    return kept


# Below 1e-5 of the largest standard deviation there are only float32 rounding errors.
NO_VARIANCE = 1e-10
_BLOCK = 4096  # rows; 25 MB as float64 at width 768


def blocks(vectors: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Yield views of at most ``_BLOCK`` rows of ``(n, D)``."""
    for start in range(0, len(vectors), _BLOCK):
        yield vectors[start : start + _BLOCK]


def check_finite(vectors: NDArray[np.float32]) -> None:
    """Raise a CseError for the first row of ``(n, D)`` with a non-finite value."""
    for number, block in enumerate(blocks(vectors)):
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(bad):
            raise CseError(
                f"post.kind: the encoder's vector of sentence {number * _BLOCK + bad[0]} (counted from 0) is not "
                "finite; check the encoder, or encode in float32"
            )


def mean_vector(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean ``(D,)`` of ``(n, D)``, summed in float64."""
    sum_D = np.zeros(vectors.shape[1])
    for block in blocks(vectors):
        sum_D += block.sum(axis=0, dtype=np.float64)
    return sum_D / max(len(vectors), 1)


def fit_whitening(vectors: NDArray[np.float32], dimension: int | None = None) -> LinearMap:
    """Fit a whitening to sentence vectors, in float64.

    Outputs of a LayerNorm lie in a subspace (their scaled sum is constant), however many sentences there are. A
    direction without variance carries no information, so its column is zero; the published formula would amplify
    rounding errors to unit variance. Cosines use the remaining directions.

    A column of the matrix is a direction of the vectors, in order of decreasing variance, over its standard deviation.
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
    seen: set[bytes] = set()
    for row in vectors:
        seen.add(row.tobytes())
        if len(seen) > kept:
            return
    lower = f" or set post.dimension to {rank} or less" if rank else ""
    raise CseError(
        f"post.kind: whitening to {kept} dimensions needs more than {kept} distinct sentences, found {len(seen)}; "
        f"prepare more rows{lower}"
    )


# Not scikit-learn's, which scores the same on banking77: it keeps no sums to take a fold's rows from.
@dataclass(frozen=True)
class Scatter:
    """Sums over the vectors of ``C`` labels, less an origin near their mean, so that nothing cancels; in float64."""

    origin_D: NDArray[np.float64]
    count_C: NDArray[np.int64]
    sum_CD: NDArray[np.float64]
    square_DD: NDArray[np.float64]  # of the outer products of all vectors with themselves

    @classmethod
    def of(
        cls, vectors: NDArray[np.float32], label_N: NDArray[np.int64], labels: int, origin_D: NDArray[np.float64]
    ) -> Scatter:
        """Sum vectors ``(n, D)`` whose labels are numbers below ``labels``."""
        width, start = vectors.shape[1], 0
        sum_CD, square_DD = np.zeros((labels, width)), np.zeros((width, width))
        for block in blocks(vectors):
            centred = block - origin_D
            np.add.at(sum_CD, label_N[start : start + len(block)], centred)
            square_DD += centred.T @ centred
            start += len(block)
        return cls(origin_D, np.bincount(label_N, minlength=labels), sum_CD, square_DD)

    def __sub__(self, other: Scatter) -> Scatter:
        """Return the sums without the vectors of ``other``, which has the same origin."""
        count_C, sum_CD = self.count_C - other.count_C, self.sum_CD - other.sum_CD
        return Scatter(self.origin_D, count_C, sum_CD, self.square_DD - other.square_DD)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of all vectors ``(D,)``."""
        return np.asarray(self.origin_D + self.sum_CD.sum(axis=0) / self.count_C.sum())

    @property
    def fault(self) -> str:
        """Why no discriminant can be fitted, or an empty string."""
        labels = int((self.count_C > 0).sum())
        if labels < 2:
            return f"a discriminant tells labels apart, found {labels}; prepare texts of at least 2"
        if self.count_C.max() < 2:
            return f"a discriminant needs a label of at least 2 texts, each of the {labels} has 1; prepare more texts"
        least = NO_VARIANCE * np.trace(self.square_DD) / self.count_C.sum()
        if np.trace(self.within()) <= least:
            return "the texts of each label have one vector; prepare more distinct texts"
        if np.square(self.between()).sum() <= least:
            return "the labels have the same mean vector; give texts of one kind one label"
        return ""

    def within(self) -> NDArray[np.float64]:
        """Return ``S_w (D, D)`` over n; a label of one vector adds nothing."""
        sums_CD = self.sum_CD / np.sqrt(np.maximum(self.count_C, 1))[:, None]
        return np.asarray((self.square_DD - sums_CD.T @ sums_CD) / self.count_C.sum())

    def between(self) -> NDArray[np.float64]:
        """Return ``A (C, D)`` of ``S_b = A^T A``: the labels' means less the mean, weighted by their shares' roots."""
        means_CD = self.origin_D + self.sum_CD / np.maximum(self.count_C, 1)[:, None]
        return np.asarray(np.sqrt(self.count_C / self.count_C.sum())[:, None] * (means_CD - self.mean))

    def fit(self, shrinkage: float, dimension: int | None = None) -> LinearMap:
        """Return the discriminant of these vectors, see ``fit_discriminant``."""
        matrix_Dd = with_fixed_signs(self.directions(shrinkage))
        return LinearMap.of("discriminant", self.mean, matrix_Dd[:, :dimension])

    def directions(self, shrinkage: float) -> NDArray[np.float64]:
        """Return the eigenvectors with ``lambda > 0`` in descending order, ``(D, d)``; ``v^T S_w v = 1``.

        With ``S_b = A^T A`` and ``S_w = L L^T``, they are those of the singular vectors of ``L^-1 A^T``: no ``S_b`` is
        formed, whose rank is low and whose small eigenvalues would be rounding errors.
        """
        within_DD = self.within()
        width = len(within_DD)
        shrunk_DD = (1 - shrinkage) * within_DD + shrinkage * np.trace(within_DD) / width * np.eye(width)
        lower_DD = scipy.linalg.cholesky(shrunk_DD, lower=True)
        found_Dd, root_d, _ = scipy.linalg.svd(
            scipy.linalg.solve_triangular(lower_DD, self.between().T, lower=True), full_matrices=False
        )
        rank = int((root_d**2 > NO_VARIANCE * root_d[0] ** 2).sum())
        return np.asarray(scipy.linalg.solve_triangular(lower_DD, found_Dd[:, :rank], lower=True, trans="T"))


def fit_discriminant(
    vectors: NDArray[np.float32], labels: Sequence[str], shrinkage: float, dimension: int | None = None
) -> LinearMap:
    """Fit a discriminant to labelled sentence vectors, in float64; a shrinkage of 0 is for a regular ``S_w`` only.

    It keeps that many leading directions; None: all, one fewer than labels and at most D.
    """
    kept_dimension(dimension, vectors.shape[1])
    return scatter_of(vectors, numbered(labels)).fit(shrinkage, dimension)


def numbered(labels: Sequence[str]) -> NDArray[np.int64]:
    """Return labels as numbers from 0, in the order of their names."""
    return np.unique(np.asarray(labels, dtype=np.str_), return_inverse=True)[1].reshape(-1)


def scatter_of(vectors: NDArray[np.float32], label_N: NDArray[np.int64]) -> Scatter:
    """Return the sums over vectors ``(n, D)`` with numbered labels."""
    check_finite(vectors)
    scatter = Scatter.of(vectors, label_N, int(label_N.max(initial=-1)) + 1, mean_vector(vectors))
    if scatter.fault:
        raise CseError(f"post.kind: {scatter.fault}")
    return scatter
