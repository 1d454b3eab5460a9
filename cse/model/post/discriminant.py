"""Linear discriminant analysis (Fisher 1936; Rao 1948): the directions in which labels differ most.

``S_b v = lambda S_w v``, with the covariance ``S_b`` of the labels' means and the pooled covariance ``S_w`` within
labels, shrunk towards a multiple of the identity (Friedman 1989): ``(1 - s) S_w + s tr(S_w) / D I``. What varies within
a label no longer counts when vectors are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from cse.errors import CseError
from cse.model.post.linear import LinearMap, kept_dimension, with_fixed_signs
from cse.model.post.vectors import NO_VARIANCE, blocks, check_finite, mean_vector


# Not scikit-learn's, which scores the same on banking77: it keeps no sums to take a fold's rows from.
@dataclass(frozen=True)
class Scatter:
    """Sums over the vectors of ``C`` labels, less an origin near their mean, so that nothing cancels; in float64.

    Attributes:
        count_C: vectors of each label.
        square_DD: sum of the outer products of all vectors with themselves.
    """

    origin_D: NDArray[np.float64]
    count_C: NDArray[np.int64]
    sum_CD: NDArray[np.float64]
    square_DD: NDArray[np.float64]

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
    """Fit a discriminant to labelled sentence vectors, in float64.

    Args:
        vectors: ``(n, D)``, one row per text.
        labels: of each row.
        shrinkage: s, from 0 (for a regular ``S_w`` only) to 1.
        dimension: number of leading directions to keep, at most D; None: all, one fewer than labels and at most D.
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
