"""The shape of the space, in numbers and in pictures.

``alignment = mean ||f(x) - f(x+)||^2`` over positive pairs, ``uniformity = log mean exp(-2 ||f(x) - f(y)||^2)`` over
all pairs of different rows, vectors of unit length (Wang and Isola 2020), exact. Papers use different pairs and rows
without saying so. This follows SimCSE's authors: positives with gold above 4, rows of all STS-B splits.

Pictures show a kernel density of the cosines of one task's pairs, per group of gold similarity (PromCSE figure 3, D2CSE
figure 2b). The papers state neither the split nor the bounds of the groups. Here the range of gold scores is cut into
five equal parts, ``[0, 1) [1, 2) [2, 3) [3, 4) [4, 5]`` for STS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import logsumexp
from scipy.stats import gaussian_kde

from cse.data.tasks.kinds import ScoredPairs
from cse.errors import CseError
from cse.evaluation.measures import Score, Vectors
from cse.runtime.encode import unit_rows

_BLOCK = 1024  # rows
_ALIKE = 4.0  # a pair of a higher gold score is positive
ALL = "all pairs"
GROUPS, POINTS = 5, 201  # of a density
DENSITY_COLUMNS = ("group", "pairs", "cosine", "density")
DRAWN_TASK = "STS-B"


def score_space(vectors: Vectors, splits: Sequence[ScoredPairs]) -> Score:
    """Measure given embeddings on the pairs of some splits."""
    first = [text for split in splits for text in split.sentence1]
    second = [text for split in splits for text in split.sentence2]
    positive = np.flatnonzero(np.concatenate([split.score for split in splits]) > _ALIKE)
    if not len(positive):
        raise CseError(f"alignment: no pair has a gold score above {_ALIKE:g}")
    aligned = alignment(*(vectors.of([side[i] for i in positive]) for side in (first, second)))
    rows = [*first, *second]
    return Score(
        {"alignment": aligned, "uniformity": uniformity(vectors.of(rows))},
        f"{' + '.join(split.name for split in splits)}, {len(positive):,} pairs with gold > {_ALIKE:g}, {len(rows):,} "
        "sentences",
    )


def alignment(a: np.ndarray, b: np.ndarray) -> float:
    """Mean squared distance of pairs of unit vectors; ``a`` and ``b`` are ``(n, d)`` of any length."""
    return float(((_unit(a) - _unit(b)) ** 2).sum(axis=1).mean())


def uniformity(rows: np.ndarray, t: float = 2.0) -> float:
    """Logarithm of the mean of ``exp(-t d^2)`` over the ``n (n - 1) / 2`` pairs of rows ``(n, d)``, in blocks."""
    if len(rows) < 2:
        raise CseError(f"uniformity: needs at least 2 sentences, found {len(rows)}")
    unit_ND = _unit(rows)
    parts = []
    for start in range(0, len(unit_ND), _BLOCK):
        block_BD = unit_ND[start : start + _BLOCK]
        exponent_BN = 2 * t * (block_BD @ unit_ND[start:].T - 1)  # -t d^2 = 2 t (cosine - 1)
        exponent_BN[np.tril_indices(len(block_BD), m=exponent_BN.shape[1])] = -np.inf  # each pair once, no self-pairs
        parts.append(logsumexp(exponent_BN))
    pairs = len(rows) * (len(rows) - 1) / 2
    return float(logsumexp(parts) - np.log(pairs))


def _unit(rows_ND: np.ndarray) -> np.ndarray:
    zero = np.flatnonzero(~rows_ND.any(axis=1))
    if len(zero):
        raise CseError(
            f"uniformity: sentence {zero[0] + 1} of {len(rows_ND)} has a zero vector, which has no direction; leave "
            "sentences without known words out"
        )
    return unit_rows(rows_ND.astype(np.float64))


@dataclass(frozen=True)
class Density:
    """The curve of all pairs or of a group of gold scores, such as ``[0, 1)``; its area is 1 if it ends within.

    Attributes:
        cosine, density: points of the curve and its values there, ``(points,)``.
    """

    group: str
    pairs: int
    cosine: np.ndarray
    density: np.ndarray


def densities(cosine: np.ndarray, gold: np.ndarray) -> list[Density]:
    """Return the curve of all pairs ``(n,)`` and one per group of gold scores, lowest first.

    A group without two different cosines has no curve and is skipped.
    """
    low, high = np.floor(gold.min()), np.ceil(gold.max())
    edges = np.linspace(low, high if high > low else low + 1, GROUPS + 1)
    group = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, GROUPS - 1)
    names = [f"[{a:g}, {b:g})" for a, b in pairwise(edges)]
    names[-1] = names[-1].replace(")", "]")
    grid = np.linspace(min(0.0, np.floor(10 * cosine.min()) / 10), 1.0, POINTS)
    drawn = [(ALL, cosine), *((name, cosine[group == i]) for i, name in enumerate(names))]
    return [
        Density(name, len(part), grid, gaussian_kde(part)(grid))
        for name, part in drawn
        if len(part) > 1 and np.ptp(part) >= 1e-9
    ]


def density_rows(curves: Iterable[Density]) -> list[tuple[str | int, ...]]:
    """Return the points of curves for a CSV file, in the order of ``DENSITY_COLUMNS``."""
    return [
        (curve.group, curve.pairs, f"{x:.3f}", f"{y:.4f}")
        for curve in curves
        for x, y in zip(curve.cosine, curve.density, strict=True)
    ]


def drawn_task(tasks: Sequence[ScoredPairs]) -> ScoredPairs | None:
    """Return the task to show in figures: STS-B if present, otherwise the first, if there is one."""
    return next((task for task in tasks if task.name == DRAWN_TASK), next(iter(tasks), None))
