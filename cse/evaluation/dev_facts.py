"""The dev score among the facts of a run: the one place that knows its keys.

Scored pairs have ``dev_spearman``, any other task ``dev_score`` and ``dev_measure``; likewise ``start_dev_...`` before
training and ``selection_...`` for the score that chose the checkpoint, where that differs. All are times 100.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPEARMAN = "Spearman"
DEV, START, SELECTION = "dev", "start_dev", "selection"
_MEASURE = "dev_measure"
_WHICH = (DEV, START, SELECTION)


@dataclass(frozen=True)
class DevScore:
    """A dev score.

    Attributes:
        value: times 100.
        measure: what it is, such as ``Spearman`` or ``kNN``.
    """

    value: float
    measure: str = SPEARMAN

    @property
    def label(self) -> str:
        """What it is called, such as ``dev Spearman``."""
        return dev_label(self.measure)

    def __str__(self) -> str:
        return f"{self.label} {self.value:.2f}"


def dev_label(measure: str) -> str:
    """Return what a dev score is called."""
    return f"dev {measure}"


def facts_of(score: DevScore, which: str = DEV) -> dict[str, Any]:
    """Return a dev score as facts, rounded to four decimals."""
    value = {dev_key(score.measure, which): round(score.value, 4)}
    return value if score.measure == SPEARMAN else value | {_MEASURE: score.measure}


def dev_of(facts: Mapping[str, Any], which: str = DEV) -> DevScore | None:
    """Return the dev score among a run's facts; None if there is none."""
    for measure in (SPEARMAN, str(facts.get(_MEASURE))):
        value = facts.get(dev_key(measure, which))
        if isinstance(value, int | float):
            return DevScore(float(value), measure)
    return None


def value_of(score: DevScore | None) -> float | None:
    """Return the value of a dev score, if there is one."""
    return None if score is None else score.value


def measure_in(facts: Mapping[str, Any]) -> str | None:
    """Return the measure of the dev score among a run's facts; None if there is no score."""
    score = dev_of(facts)
    return None if score is None else score.measure


def dev_facts_in(facts: Mapping[str, Any], *which: str) -> dict[str, Any]:
    """Return those of some facts that hold the dev score (``which``: of those kinds; none given: all)."""
    return {key: value for key, value in facts.items() if key in dev_keys(*which)}


def dev_keys(*which: str) -> list[str]:
    """Return the keys that may hold a dev score, scored pairs' first."""
    kinds: Sequence[str] = which or _WHICH
    return [dev_key(measure, kind) for measure in (SPEARMAN, "") for kind in kinds] + [_MEASURE]


def dev_column(measure: str) -> str:
    """Return the column of ``dev.csv`` for a measure."""
    return "spearman" if measure == SPEARMAN else "score"


def dev_key(measure: str, which: str = DEV) -> str:
    """Return the key of a dev score."""
    return f"{which}_spearman" if measure == SPEARMAN else f"{which}_score"


def standard_error(score: float, pairs: int, measure: str = SPEARMAN) -> float:
    """Return the standard error of a Spearman correlation, both times 100; infinite for fewer than four pairs.

    Of another measure, return that of a share, ``sqrt(p (1 - p) / n)``: the most that a mean over items can have.

    Fisher's z of a Spearman correlation has the variance ``(1 + rho^2 / 2) / (n - 3)`` (Bonett and Wright 2000,
    Psychometrika 65(1)); its root times ``1 - rho^2``, the slope of ``tanh``, is the error of the correlation.
    Models are scored on the same pairs, so their errors correlate and a difference is more certain than two separate
    scores.
    """
    if pairs < 4:
        return math.inf
    rho = score / 100
    if measure != SPEARMAN:
        return 100 * math.sqrt(max(rho * (1 - rho), 0.0) / pairs)
    return 100 * (1 - rho**2) * math.sqrt((1 + rho**2 / 2) / (pairs - 3))
