"""Distribution of cosines: a kernel density per group of gold similarity (PromCSE figure 3, D2CSE figure 2b).

The papers state neither the split nor the bounds of the groups. Here the range of gold scores is cut into five equal
parts, ``[0, 1) [1, 2) [2, 3) [3, 4) [4, 5]`` for STS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.stats import gaussian_kde

ALL = "all pairs"
GROUPS = 5
POINTS = 201
DENSITY_COLUMNS = ("group", "pairs", "cosine", "density")


@dataclass(frozen=True)
class Density:
    """One curve.

    Attributes:
        group: ``all pairs``, or its range of gold scores, such as ``[0, 1)``.
        cosine: points of the curve, ``(points,)``.
        density: values at these points, ``(points,)``; the area is 1 if nothing lies beyond the ends.
    """

    group: str
    pairs: int
    cosine: np.ndarray
    density: np.ndarray


def densities(cosine: np.ndarray, gold: np.ndarray) -> list[Density]:
    """Return the curve of all pairs and one per group, lowest gold scores first.

    A group without two different cosines has no curve and is skipped.

    Args:
        cosine: of each pair, ``(n,)``.
        gold: scores, ``(n,)``.
    """
    low, high = np.floor(gold.min()), np.ceil(gold.max())
    edges = np.linspace(low, high if high > low else low + 1, GROUPS + 1)
    group = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, GROUPS - 1)
    names = [f"[{a:g}, {b:g})" for a, b in pairwise(edges)]
    names[-1] = names[-1].replace(")", "]")
    grid = np.linspace(min(0.0, np.floor(10 * cosine.min()) / 10), 1.0, POINTS)
    curves = [_curve(ALL, cosine, grid)] + [_curve(name, cosine[group == i], grid) for i, name in enumerate(names)]
    return [curve for curve in curves if curve is not None]


def density_rows(curves: Iterable[Density]) -> list[tuple[str | int, ...]]:
    """Return the points of curves for a CSV file, in the order of ``DENSITY_COLUMNS``."""
    return [
        (curve.group, curve.pairs, f"{x:.3f}", f"{y:.4f}")
        for curve in curves
        for x, y in zip(curve.cosine, curve.density, strict=True)
    ]


def _curve(name: str, cosine: np.ndarray, grid: np.ndarray) -> Density | None:
    if len(cosine) < 2 or np.ptp(cosine) < 1e-9:
        return None
    return Density(name, len(cosine), grid, gaussian_kde(cosine)(grid))
