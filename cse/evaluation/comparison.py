"""Is one model better than another: on each of the user's own tasks and pairs, and on the seven STS tasks as a whole?

Items and training seeds are two sources of chance in one interval.

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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import t as student

from cse.errors import CseError
from cse.evaluation import pairs
from cse.evaluation.dev_facts import SPEARMAN
from cse.evaluation.measures import average_name
from cse.evaluation.score import AP, COSINE, F1, GOLD
from cse.evaluation.sts import SEVEN_TASKS

RESAMPLES = 2000
LEVEL = 0.95
SMALLEST_P = 2 / (RESAMPLES + 1)
_ROWS_AT_ONCE = 100  # resamples; bounds memory to this many times the number of items
_OF_PAIRS = {SPEARMAN: pairs.rank_correlations, AP: pairs.average_precisions, F1: pairs.best_f1s}
Numbers = float | NDArray[np.float64]
Items = Mapping[str, Mapping[str, np.ndarray]]  # by task, ``tasks/NAME`` or ``sts/NAME``, and measure
STS = "STS"
ONE_TRAINING = "this one training only"


@dataclass(frozen=True)
class Outcomes:
    """What one measure of one model is computed from.

    Attributes:
        values: per seed and item ``(S, N)``: the item's score, or the cosine of a pair.
        gold: gold score or class of each pair ``(N,)``; None for a mean over items.
        statistic: the measure of pairs, a key of ``_OF_PAIRS``; empty for a mean.
        trained: whether another seed would have given another model; the bare backbone has none.
        content: hash of the items in their order, see ``content_of``; empty if not known.
    """

    values: NDArray[np.float64]
    gold: NDArray[np.float64] | None = None
    statistic: str = ""
    trained: bool = True
    content: str = ""

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return int(self.values.shape[0])

    @property
    def items(self) -> int:
        """Number of items."""
        return int(self.values.shape[1])

    def scores(self, counts_RN: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the measure times 100, ``(R, S)``, NaN where not defined, of resamples that hold an item so often."""
        if self.gold is None:
            return 100 * (counts_RN @ self.values.T) / counts_RN.sum(axis=1, keepdims=True)
        return 100 * _OF_PAIRS[self.statistic](self.values, self.gold, counts_RN)


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
        tree = asdict(self) | {"difference": self.difference, "seeds": list(self.seeds), "verdict": self.verdict}
        del tree["corrected"]
        return tree


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


def compare(before: Outcomes, after: Outcomes) -> Comparison:
    """Compare two models on one measure of one task, by the same items in the same order."""
    return compare_average([(before, after)])


def compare_average(tasks: Sequence[tuple[Outcomes, Outcomes]]) -> Comparison:
    """Compare two models on the mean of one measure over several tasks; items are drawn within each task.

    Each model has the same seeds in every task.
    """
    rng = np.random.default_rng(0)
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
    once = [[outcomes.scores(np.ones((1, outcomes.items)))[0] for outcomes in pair] for pair in tasks]
    seeds = [np.mean([pair[model] for pair in once], axis=0) for model in (0, 1)]  # (S,) each
    sides = [
        (float(scores_S.var(ddof=1) / len(scores_S)) if len(scores_S) > 1 else 0.0, len(scores_S) - 1)
        for scores_S in seeds
    ]
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


def _quantile(alpha: float, degrees: Numbers) -> Any:
    return student.isf(alpha / 2, degrees)


def half_width_of_mean(values: Sequence[float]) -> float:
    """Return half the width of the interval of a mean over seeds (Student's t)."""
    return float(_quantile(1 - LEVEL, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)


def holm(p: Sequence[float]) -> list[float]:
    """Return p values of several questions, corrected by Holm (1979): below 0.05 even where the best one is picked."""
    order = np.argsort(p, kind="stable")
    found = np.empty(len(p))
    found[order] = np.minimum(np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)), 1)
    return found.tolist()


@dataclass(frozen=True)
class Measured:
    """What one model scored, once per training seed.

    Attributes:
        items: of the user's own tasks and of the similarity tasks, one mapping per seed, see ``write_items``.
        measures: by own task, the names of its measures, the main one first.
        trained: whether another seed would have scored otherwise; the bare backbone has none.
        content: hashes of what was measured, one mapping per seed, see ``content_of_suite``; empty if not known.
    """

    items: Sequence[Items]
    measures: Mapping[str, Sequence[str]]
    trained: bool = True
    content: Sequence[Mapping[str, str]] = ()

    def content_of(self, key: str) -> str:
        """Return the hash of a task such as ``tasks/NAME``; empty if not known."""
        found = sorted({each[key] for each in self.content if key in each})
        if len(found) > 1:
            name = key.partition("/")[2]
            raise CseError(f"{name}: seeds of one model were measured on different items; evaluate all of them again")
        return found[0] if found else ""


@dataclass(frozen=True)
class Compared:
    """One comparison with the task and the measure that it is about; ``main``: the measure stands for the task."""

    task: str
    measure: str
    main: bool
    comparison: Comparison

    def sentence(self) -> str:
        """Return the result in words, such as ``manual nDCG@10: 50.35 -> 52.10, better by 1.75; 95 % interval ...``."""
        one = self.comparison
        words = {"better": f"better by {one.difference:.2f}", "worse": f"worse by {-one.difference:.2f}"}
        told = words.get(one.verdict, f"{one.verdict} ({one.difference:+.2f})")
        corrected = "" if one.corrected is None else f" ({one.corrected:.3f} corrected)"
        seeds = f", {max(one.seeds)} seeds" if max(one.seeds) > 1 else ""
        alone = f"; holds for {ONE_TRAINING}" if one.one_training else ""
        return (
            f"{self.task} {self.measure}: {one.before:.2f} -> {one.after:.2f}, {told}; 95 % interval {one.low:+.2f} to "
            f"{one.high:+.2f}, p {one.p:.3f}{corrected}, {one.items:,} items{seeds}{alone}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return names and numbers for JSON."""
        return {"task": self.task, "measure": self.measure, **self.comparison.to_dict()}


def compare_measured(before: Measured, after: Measured) -> list[Compared]:
    """Compare two models on every measure that both have, own tasks first.

    A measure that is no mean over items and not of pairs (a threshold) has no comparison.
    """
    found = []
    for task, measures in after.measures.items():
        for number, measure in enumerate(measures if task in before.measures else ()):
            if pair := _pair(before, after, f"tasks/{task}", measure):
                found.append(Compared(task, measure, number == 0, compare(*pair)))
    common = set[str].intersection(*(set(items) for items in (*before.items, *after.items)))
    names = [key.removeprefix("sts/") for key in after.items[0] if key in common and key.startswith("sts/")]
    tasks = {name: pair for name in names if (pair := _pair(before, after, f"sts/{name}", SPEARMAN))}
    seven = [name for name in tasks if name in SEVEN_TASKS]
    found += [Compared(name, SPEARMAN, True, compare(*tasks[name])) for name in tasks if name not in seven]
    if seven:
        measure = f"{SPEARMAN}, {average_name(seven, SEVEN_TASKS)}" if len(seven) > 1 else f"{SPEARMAN}, {seven[0]}"
        found.append(Compared(STS, measure, True, compare_average([tasks[name] for name in seven])))
    return found


def corrected(found: Sequence[Compared]) -> list[Compared]:
    """Return comparisons as several questions at once: a verdict needs a p value that Holm's correction leaves."""
    p = holm([one.comparison.p for one in found])
    return [
        replace(one, comparison=replace(one.comparison, corrected=each)) for one, each in zip(found, p, strict=True)
    ]


def compared_rows(found: Sequence[Compared]) -> list[list[str]]:
    """Return a header and a row of text per comparison."""
    rows = [["task", "measure", "verdict", "before", "after", "difference", "95 % interval", "p", "items"]]
    for compared in found:
        one = compared.comparison
        verdict = f"{one.verdict}, {ONE_TRAINING}" if one.one_training else one.verdict
        numbers = [f"{one.before:.2f}", f"{one.after:.2f}", f"{one.difference:+.2f}"]
        interval = [f"{one.low:+.2f} to {one.high:+.2f}", f"{one.p:.3f}", f"{one.items:,}"]
        rows.append([compared.task, compared.measure, verdict, *numbers, *interval])
    return rows


def _outcomes(model: Measured, task: str, measure: str) -> Outcomes | None:
    """Return what a measure is computed from: items of the task by seed, if any."""
    items = [seed[task] for seed in model.items if task in seed]
    if not items:
        return None
    content = model.content_of(task)
    if measure in items[0]:
        return Outcomes(np.stack([each[measure] for each in items]) / 100, trained=model.trained, content=content)
    if measure in _OF_PAIRS and COSINE in items[0]:
        cosine_SN = np.stack([each[COSINE] for each in items])
        return Outcomes(cosine_SN, items[0][GOLD], measure, model.trained, content)
    return None


def _pair(before: Measured, after: Measured, task: str, measure: str) -> tuple[Outcomes, Outcomes] | None:
    one, other = (_outcomes(model, task, measure) for model in (before, after))
    return None if one is None or other is None else (one, other)
