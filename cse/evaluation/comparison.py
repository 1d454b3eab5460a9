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

    def scores(self, counts_RN: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the measure times 100 by resample and seed, ``(R, S)``; NaN where it is not defined.

        Args:
            counts_RN: how often each resample holds each item.
        """
        if self.gold is None:
            return 100 * (counts_RN @ self.values.T) / counts_RN.sum(axis=1, keepdims=True)
        return 100 * _STATISTICS[self.statistic](self.values, self.gold, counts_RN)


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
        count = pair[0].items
        observed += [float(outcomes.scores(np.ones((1, count))).mean()) for outcomes in pair]
        for first in range(0, RESAMPLES, _ROWS_AT_ONCE):
            part = slice(first, min(first + _ROWS_AT_ONCE, RESAMPLES))
            counts_RN = _draw(rng, part.stop - first, count)
            for model, outcomes in enumerate(pair):
                found[model, part] += (outcomes.scores(counts_RN) * weights[model][part]).sum(axis=1)
    before, after = observed / len(tasks)
    differences = (found[1] - found[0]) / len(tasks)
    differences = differences[np.isfinite(differences)]  # a resample of few pairs may have no correlation
    low, high = np.percentile(differences, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]) if len(differences) else (-100, 100)
    side = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (1 + int(side)) / (1 + max(len(differences), 1)))
    return Comparison(float(before), float(after), float(low), float(high), p, sum(b.items for b, _ in tasks), seeds)


def _draw(rng: np.random.Generator, resamples: int, items: int) -> NDArray[np.float64]:
    """Return how often each of some resamples holds each item, ``(R, N)``; as many items are drawn as there are."""
    rows_RN = rng.integers(items, size=(resamples, items)) + items * np.arange(resamples)[:, None]
    return np.bincount(rows_RN.ravel(), minlength=resamples * items).reshape(resamples, items).astype(np.float64)


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


def rank_correlation(
    cosine_SN: NDArray[np.float64], gold_N: NDArray[np.float64], counts_RN: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return Spearman's correlation by resample and seed, ``(R, S)``; NaN where one side is constant."""
    total_R = counts_RN.sum(axis=1)

    def centred_ranks(values_N: NDArray[np.float64]) -> NDArray[np.float64]:
        ranks_RN = _ranks(values_N, counts_RN)
        return ranks_RN - ((counts_RN * ranks_RN).sum(axis=1) / total_R)[:, None]

    gold_RN = centred_ranks(gold_N)
    weighted_RN = counts_RN * gold_RN
    gold_R = (weighted_RN * gold_RN).sum(axis=1)
    found_RS = np.empty((len(counts_RN), len(cosine_SN)))
    for seed, cosine_N in enumerate(cosine_SN):
        ranks_RN = centred_ranks(cosine_N)
        scale_R = np.sqrt(gold_R * (counts_RN * ranks_RN**2).sum(axis=1))
        with np.errstate(invalid="ignore"):
            found_RS[:, seed] = (weighted_RN * ranks_RN).sum(axis=1) / scale_R
    return found_RS


def _ranks(values_N: NDArray[np.float64], counts_RN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each item in each resample, the mean of those that equal values and repetitions take."""
    order, ends = _classes(values_N)
    upto_RC = np.cumsum(counts_RN[:, order], axis=1)[:, ends]  # items up to the end of each class of equal values
    ranks_RC = (np.concatenate([np.zeros((len(upto_RC), 1)), upto_RC[:, :-1]], axis=1) + upto_RC + 1) / 2
    class_N = np.empty(len(order), np.int64)
    class_N[order] = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=-1))
    return ranks_RC[:, class_N]


def _classes(values_N: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of rising values, and the last place in it of each class of equal ones."""
    order = np.argsort(values_N, kind="stable")
    return order, np.append(np.flatnonzero(np.diff(values_N[order])), len(order) - 1)


def average_precision(
    cosine_SN: NDArray[np.float64], gold_N: NDArray[np.float64], counts_RN: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the average precision of binary pairs by resample and seed, as scikit-learn defines it; NaN without a
    positive pair.
    """
    curves = (_precision_recall(cosine_N, gold_N, counts_RN) for cosine_N in cosine_SN)
    return np.stack([(np.diff(recall, prepend=0, axis=1) * precision).sum(axis=1) for precision, recall in curves], 1)


def best_f1(
    cosine_SN: NDArray[np.float64], gold_N: NDArray[np.float64], counts_RN: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the largest F1 over all thresholds by resample and seed; NaN without a positive pair."""
    curves = (_precision_recall(cosine_N, gold_N, counts_RN) for cosine_N in cosine_SN)
    return np.stack([(2 * p * r / np.maximum(p + r, 1e-12)).max(axis=1) for p, r in curves], axis=1)


def _precision_recall(
    cosine_N: NDArray[np.float64], gold_N: NDArray[np.float64], counts_RN: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return precision and recall at each distinct cosine, from the largest down, ``(R, C)``."""
    order, ends = _classes(-cosine_N)
    found_RC = np.cumsum(counts_RN[:, order], axis=1)[:, ends]
    hits_RC = np.cumsum((counts_RN * (gold_N > 0))[:, order], axis=1)[:, ends]
    with np.errstate(invalid="ignore"):
        return hits_RC / np.maximum(found_RC, 1), hits_RC / hits_RC[:, -1:]


_STATISTICS: dict[str, Callable[..., NDArray[np.float64]]] = {
    "spearman": rank_correlation,
    "average_precision": average_precision,
    "best_f1": best_f1,
}
