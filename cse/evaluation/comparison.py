"""Is one model better than another? A paired bootstrap over the items of a task, and over training seeds.

Both models are measured on the same queries, pairs or texts, so each resample draws items once for both: what makes an
item hard for either does not count as a difference. Where a model was trained with several seeds, a resample also draws
among them, one fewer than there are: drawing all of them would make the variance of their mean too small, by a third
with three seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cse.errors import CseError

RESAMPLES = 2000
LEVEL = 0.95
_ROWS_AT_ONCE = 100  # resamples; bounds memory to this many times the number of items
Statistic = Literal["mean", "spearman", "average_precision", "best_f1"]


@dataclass(frozen=True)
class Outcomes:
    """What one measure of one model is computed from.

    Attributes:
        values: per seed and item ``(S, N)``: the item's score for ``mean``, else the cosine of a pair.
        gold: gold score or class of each pair ``(N,)``; None for ``mean``.
        statistic: how the measure follows from the values.
    """

    values: NDArray[np.float64]
    gold: NDArray[np.float64] | None = None
    statistic: Statistic = "mean"

    @property
    def items(self) -> int:
        """Number of items."""
        return int(self.values.shape[1])

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return int(self.values.shape[0])

    def scores(self, rows_RN: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the measure times 100 for each resample and seed, ``(R, S)``; NaN where it is not defined."""
        if self.gold is None:
            return 100 * np.stack([values_N[rows_RN].mean(axis=1) for values_N in self.values], axis=1)
        score, gold_N = _STATISTICS[self.statistic], self.gold
        return 100 * np.array([[score(values_N[row], gold_N[row]) for values_N in self.values] for row in rows_RN])


@dataclass(frozen=True)
class Comparison:
    """How much a model differs from another in a measure, in points (times 100).

    Attributes:
        before: the measure of the one, mean over seeds.
        after: that of the other.
        low, high: 95 % interval of ``after - before``.
        p: two-sided, of no difference; at least ``1 / (RESAMPLES + 1)``.
        items: queries, pairs or texts.
        seeds: training seeds of each.
    """

    before: float
    after: float
    low: float
    high: float
    p: float
    items: int
    seeds: tuple[int, int]

    @property
    def difference(self) -> float:
        """``after - before``."""
        return self.after - self.before

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no difference at this size``: whether the interval excludes 0."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no difference at this size"

    def to_dict(self) -> dict[str, Any]:
        """Return numbers for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "items": self.items,
            "seeds": list(self.seeds),
            "verdict": self.verdict,
        }


def compare(before: Outcomes, after: Outcomes, *, seed: int = 0) -> Comparison:
    """Compare two models on one measure of one task.

    Args:
        before: outcomes of the one.
        after: outcomes of the other, on the same items in the same order.
        seed: of the resampling.

    Raises:
        CseError: the items differ.
    """
    return compare_average([(before, after)], seed=seed)


def compare_average(tasks: Sequence[tuple[Outcomes, Outcomes]], *, seed: int = 0) -> Comparison:
    """Compare two models on the mean of one measure over several tasks; items are drawn within each task.

    Args:
        tasks: outcomes of both models, task by task, with the same seeds in every task.
        seed: of the resampling.

    Raises:
        CseError: the items of a task differ.
    """
    rng = np.random.default_rng(seed)
    seeds = (tasks[0][0].seeds, tasks[0][1].seeds)
    weights = [_seed_weights(rng, count) for count in seeds]
    found = np.zeros((2, RESAMPLES))
    observed = np.zeros(2)
    for pair in tasks:
        _check_same_items(*pair)
        whole = np.arange(pair[0].items)[None]
        observed += [float(outcomes.scores(whole).mean()) for outcomes in pair]
        for first in range(0, RESAMPLES, _ROWS_AT_ONCE):
            rows_RN = rng.integers(pair[0].items, size=(min(_ROWS_AT_ONCE, RESAMPLES - first), pair[0].items))
            part = slice(first, first + len(rows_RN))
            for model, outcomes in enumerate(pair):
                found[model, part] += (outcomes.scores(rows_RN) * weights[model][part]).sum(axis=1)
    before, after = observed / len(tasks)
    differences = (found[1] - found[0]) / len(tasks)
    differences = differences[np.isfinite(differences)]  # a resample of few pairs may have no correlation
    low, high = np.percentile(differences, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]) if len(differences) else (-100, 100)
    side = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (1 + int(side)) / (1 + max(len(differences), 1)))
    return Comparison(float(before), float(after), float(low), float(high), p, sum(b.items for b, _ in tasks), seeds)


def _seed_weights(rng: np.random.Generator, seeds: int) -> NDArray[np.float64]:
    """Return the weight of each seed in each resample, ``(RESAMPLES, S)``."""
    if seeds == 1:
        return np.ones((RESAMPLES, 1))
    return rng.multinomial(seeds - 1, np.full(seeds, 1 / seeds), size=RESAMPLES) / (seeds - 1)


def _check_same_items(before: Outcomes, after: Outcomes) -> None:
    same_gold = before.gold is None or (after.gold is not None and np.array_equal(before.gold, after.gold))
    if before.items != after.items or before.statistic != after.statistic or not same_gold:
        raise CseError(
            f"comparison: one model was measured on {before.items} items, the other on {after.items} or on others; "
            "evaluate both on the same data"
        )


def rank_correlation(cosine_N: NDArray[np.float64], gold_N: NDArray[np.float64]) -> float:
    """Return Spearman's correlation; NaN if one side is constant."""
    ranks_2N = rankdata(np.stack([cosine_N, gold_N]), axis=1)
    centred_2N = ranks_2N - ranks_2N.mean(axis=1, keepdims=True)
    scale = np.sqrt((centred_2N**2).sum(axis=1).prod())
    return float(centred_2N.prod(axis=0).sum() / scale) if scale > 0 else float("nan")


def average_precision(cosine_N: NDArray[np.float64], gold_N: NDArray[np.float64]) -> float:
    """Return the average precision of binary pairs, as scikit-learn defines it; NaN without a positive pair."""
    precision_N, recall_N = _precision_recall(cosine_N, gold_N)
    return float((np.diff(recall_N, prepend=0) * precision_N).sum())


def best_f1(cosine_N: NDArray[np.float64], gold_N: NDArray[np.float64]) -> float:
    """Return the largest F1 over all thresholds; NaN without a positive pair."""
    precision_N, recall_N = _precision_recall(cosine_N, gold_N)
    return float((2 * precision_N * recall_N / np.maximum(precision_N + recall_N, 1e-12)).max())


def _precision_recall(
    cosine_N: NDArray[np.float64], gold_N: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return precision and recall at each distinct cosine, from the largest down."""
    order = np.argsort(-cosine_N, kind="stable")
    hits_N = np.cumsum(gold_N[order] > 0)
    if hits_N[-1] == 0:
        return np.full(1, np.nan), np.full(1, np.nan)
    ends = np.append(np.flatnonzero(np.diff(cosine_N[order])), len(order) - 1)
    return hits_N[ends] / (ends + 1), hits_N[ends] / hits_N[-1]


_STATISTICS: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], float]] = {
    "spearman": rank_correlation,
    "average_precision": average_precision,
    "best_f1": best_f1,
}
