"""A linear map of sentence vectors: what whitening, a discriminant, a linear head and a query map are once fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cse.errors import CseError

QUERY_MAP = "query_map"


class LinearMap(nn.Module):
    """``y = (x - mean) matrix``; all zeros until it is fitted or its weights are loaded.

    Args:
        kind: ``whitening``, ``discriminant``, ``linear`` or ``query_map``.
        dimension: output width d, at most ``width``.

    Attributes:
        mean: ``(D,)``, mean of the vectors it was fitted on.
        matrix: ``(D, d)``, one direction per column, the most important first.
    """

    def __init__(self, kind: str, width: int, dimension: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = width
        self.dimension = dimension
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
