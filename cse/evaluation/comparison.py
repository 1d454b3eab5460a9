"""Is one model better than another? Items and training seeds as two sources of chance in one interval.

Both models are measured on the same queries, pairs or texts, so each resample of a bootstrap draws items once for both:
what makes an item hard for either does not count as a difference. That gives the error of the items. A trained model
adds that of its ``S`` seeds, ``s² / S``, of which few seeds know little: a t distribution with ``S - 1`` degrees of
freedom says how little. Each source has a half-width of its own, and half-widths add as squares::

    width² = t(N - 1)² v + t(f_1)² s_1² / S_1 + t(f_2)² s_2² / S_2

``v`` is the variance of the difference over resamples of ``N`` items, seeds held fixed. Each extreme is exact, and in
between the interval errs on the wide side. Two trained sides average each other's luck, so ``f_i = (S_i - 1) g`` with
``g`` from 1 (one side has all the seed variance) to 2 (both have half, with equally many seeds), as in Welch's test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import t as student

from cse.errors import CseError
from cse.evaluation import weighted

RESAMPLES = 2000
LEVEL = 0.95
SMALLEST_P = 2 / (RESAMPLES + 1)
_ROWS_AT_ONCE = 100  # resamples; bounds memory to this many times the number of items
Statistic = Literal["mean", "spearman", "average_precision", "best_f1"]
Numbers = float | NDArray[np.float64]


@dataclass(frozen=True)
class Outcomes:
    """What one measure of one model is computed from.

    Attributes:
        values: per seed and item ``(S, N)``: the item's score for ``mean``, else the cosine of a pair.
        gold: gold score or class of each pair ``(N,)``; None for ``mean``.
        trained: whether another seed would have given another model; the bare backbone has none.
        content: hash of the items in their order, see ``content_of``; empty if not known.
    """

    values: NDArray[np.float64]
    gold: NDArray[np.float64] | None = None
    statistic: Statistic = "mean"
    trained: bool = True
    content: str = ""

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
        low, high: 95 % interval of ``after - before``.
        p: two-sided, of no difference, below 0.05 where the interval excludes 0; at least ``SMALLEST_P``.
        items: queries, pairs or texts.
        seeds: training seeds of each.
        one_training: whether a side is a single training, so that all of this may be its luck.
        corrected: ``p`` as one of several questions, which then decides; None: it stands alone.
    """

    before: float
    after: float
    low: float
    high: float
    p: float
    items: int
    seeds: tuple[int, int]
    one_training: bool = False
    corrected: float | None = None

    @property
    def difference(self) -> float:
        """``after - before``."""
        return self.after - self.before

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no difference at this size``: whether interval and corrected p exclude 0."""
        if self.low <= 0 <= self.high or (self.corrected is not None and self.corrected >= 1 - LEVEL):
            return "no difference at this size"
        return "better" if self.low > 0 else "worse"

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
            "one_training": self.one_training,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Chance:
    """What moves a difference of two models by chance, see the module; numbers or arrays ``(n,)`` of variances.

    Attributes:
        before, after: of each model, the variance of its mean over seeds and the degrees of freedom of that, one fewer
            than there are seeds; 0 for a single model, which adds nothing.
    """

    items: Numbers
    degrees: int
    before: tuple[Numbers, int] = (0.0, 0)
    after: tuple[Numbers, int] = (0.0, 0)

    def half_width(self, alpha: float) -> Any:
        """Return half the width of the interval that misses the truth with probability ``alpha``."""
        (one, few), (other, many) = sorted((self.before, self.after), key=lambda side: side[1])
        together = np.maximum(np.add(one, other), np.finfo(float).tiny)
        share = one / together
        gain = 1 + (1 / (share**2 + (1 - share) ** 2) - 1) * few / max(many, 1)
        squared = self.items * _quantile(alpha, self.degrees) ** 2
        for variance, degrees in ((one, few), (other, many)):
            squared = squared + (variance * _quantile(alpha, degrees * gain) ** 2 if degrees else 0.0)
        return np.sqrt(squared)

    def p(self, difference: float) -> float:
        """Return the ``alpha`` whose interval just reaches 0, from ``SMALLEST_P`` to 1."""
        if np.isinf(self.items):
            return 1.0
        if abs(difference) >= self.half_width(SMALLEST_P):
            return SMALLEST_P if difference else 1.0
        return float(brentq(lambda alpha: self.half_width(alpha) - abs(difference), SMALLEST_P, 1.0))


def compare(before: Outcomes, after: Outcomes, *, seed: int = 0) -> Comparison:
    """Compare two models on one measure of one task.

    Args:
        after: outcomes of the other, on the same items in the same order.
    """
    return compare_average([(before, after)], seed=seed)


def compare_average(tasks: Sequence[tuple[Outcomes, Outcomes]], *, seed: int = 0) -> Comparison:
    """Compare two models on the mean of one measure over several tasks; items are drawn within each task.

    Args:
        tasks: outcomes of both models, task by task, with the same seeds in every task.
    """
    rng = np.random.default_rng(seed)
    drawn = np.zeros(RESAMPLES)
    for pair in tasks:
        _check_same_items(*pair)
        count = pair[0].items
        for first in range(0, RESAMPLES, _ROWS_AT_ONCE):
            part = slice(first, min(first + _ROWS_AT_ONCE, RESAMPLES))
            counts_RN = _draw(rng, part.stop - first, count)
            before_R, after_R = (outcomes.scores(counts_RN).mean(axis=1) for outcomes in pair)
            drawn[part] += (after_R - before_R) / len(tasks)
    drawn = drawn[np.isfinite(drawn)]  # a resample of few pairs may have no correlation
    items = sum(pair[0].items for pair in tasks)
    seeds = [np.mean([_once(pair[model]) for pair in tasks], axis=0) for model in (0, 1)]  # (S,) each
    sides = [(_variance_of_mean(scores_S), len(scores_S) - 1) for scores_S in seeds]
    known = len(drawn) and items > 1
    chance = Chance(float(drawn.var()) if known else np.inf, max(items - 1, 1), *sides)
    before, after = (float(scores_S.mean()) for scores_S in seeds)
    half = float(chance.half_width(1 - LEVEL)) if known else 100.0
    return Comparison(
        before, after, after - before - half, after - before + half, chance.p(after - before), items,
        (len(seeds[0]), len(seeds[1])), any(each.trained and each.seeds == 1 for each in tasks[0]),
    )  # fmt: skip


def _draw(rng: np.random.Generator, resamples: int, items: int) -> NDArray[np.float64]:
    """Return how often each of some resamples holds each item, ``(R, N)``; as many items are drawn as there are."""
    rows_RN = rng.integers(items, size=(resamples, items)) + items * np.arange(resamples)[:, None]
    return np.bincount(rows_RN.ravel(), minlength=resamples * items).reshape(resamples, items).astype(np.float64)


def _check_same_items(before: Outcomes, after: Outcomes) -> None:
    same_gold = before.gold is None or (after.gold is not None and np.array_equal(before.gold, after.gold))
    same_texts = before.content == after.content or not (before.content and after.content)
    if before.items != after.items or before.statistic != after.statistic or not (same_gold and same_texts):
        raise CseError(
            f"comparison: one model was measured on {before.items} items, the other on {after.items} or on others; "
            "evaluate both on the same data"
        )


def _once(outcomes: Outcomes) -> NDArray[np.float64]:
    """Return the measure of each seed with every item once, ``(S,)``."""
    return outcomes.scores(np.ones((1, outcomes.items)))[0]


def _quantile(alpha: float, degrees: Numbers) -> Any:
    return student.isf(alpha / 2, degrees)


def _variance_of_mean(scores_S: NDArray[np.float64]) -> float:
    return float(scores_S.var(ddof=1) / len(scores_S)) if len(scores_S) > 1 else 0.0


def holm(p: Sequence[float]) -> list[float]:
    """Return p values of several questions, corrected by Holm (1979): below 0.05 even where the best one is picked."""
    order = np.argsort(p, kind="stable")
    found = np.empty(len(p))
    found[order] = np.minimum(np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)), 1)
    return found.tolist()


_STATISTICS: dict[str, Callable[..., NDArray[np.float64]]] = {
    "spearman": weighted.rank_correlation,
    "average_precision": weighted.average_precision,
    "best_f1": weighted.best_f1,
}
