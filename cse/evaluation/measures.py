"""What a score is, and measures of similarity: cosine of a pair, rank correlation with the gold scores."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from cse.errors import CseError

_NO_CORRELATION = ("recall@", "alignment", "uniformity")  # metrics that are not similarity tasks


class UndefinedScore(CseError):  # noqa: N818 - reads as what it is: a score that does not exist
    """A rank correlation is undefined: one side is constant, or there are fewer than two pairs."""


class NotFinite(CseError):  # noqa: N818 - reads as what it is
    """Embeddings contain a NaN or an infinity."""


@dataclass(frozen=True)
class Score:
    """Scores of one task.

    Attributes:
        values: by measure, mostly times 100.
        facts: the same one by one, for JSON; ``main`` names the measure that stands for the task, if not the first.
        items: by measure that is a mean over items, its value for each, times 100, float64 ``(n,)``: a query, a
            triplet, a test row (for ``MAP`` of labelled texts, those that are not alone in their label). Pairs have
            ``cosine`` and ``gold`` instead, from which every measure of theirs can be computed, as they are.
        subsets: Spearman by subset of scored pairs; None if undefined (constant scores, a single pair).
        examples: queries of a paraphrase retrieval with what they found.
    """

    values: dict[str, float]
    setting: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    items: dict[str, np.ndarray] = field(default_factory=dict, compare=False)
    subsets: dict[str, float | None] = field(default_factory=dict)
    examples: list[Any] = field(default_factory=list, compare=False)

    @property
    def main(self) -> str:
        """The measure that stands for the task."""
        return self.facts.get("main") or next(iter(self.values))

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, facts and setting for JSON, without items, subsets and examples."""
        return {**self.values, **self.facts, **({"setting": self.setting} if self.setting else {})}


@dataclass(frozen=True)
class Averaged:
    """Scores of tasks that papers average.

    Attributes:
        tasks: scores by task, in the order of evaluation.
        published: names of the tasks in the published average, in the order of tables.
        aggregates: measures of which each has its own average; none: the one that stands for a task has.
    """

    tasks: dict[str, Score]
    published: tuple[str, ...]
    aggregates: tuple[str, ...] = ()
    setting: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def average_name(self) -> str:
        """``Avg.`` if all published tasks are present, otherwise ``mean of n tasks``."""
        return average_name(self.tasks, self.published)

    @property
    def figures(self) -> dict[str, float]:
        """The value that stands for each task."""
        return {name: score.values[score.main] for name, score in self.tasks.items()}

    def average(self, measure: str | None = None) -> float | None:
        """Return the mean of the scores, rounded to two decimals, of the tasks that ``average_name`` covers.

        ``Avg.`` ignores tasks other than the published ones. None if a task lacks the measure.

        Args:
            measure: one of theirs; None: the one that stands for a task.
        """
        covered = self.published if self.average_name == "Avg." else tuple(self.tasks)
        scores = [self.tasks[name].values.get(measure or self.tasks[name].main) for name in covered]
        found = [round(score, 2) for score in scores if score is not None]
        return float(np.mean(found)) if len(found) == len(scores) else None

    def to_dict(self, called: str) -> dict[str, Any]:
        """Return nested numbers for JSON: tasks under ``called``, the average under its name, facts, setting.

        ``{"sts": {"STS12": {"all": ..., "mean": ..., "wmean": ..., "pairs": 3108}, ...}, "Avg.": {"all": ...}, ...}``;
        an undefined average of an aggregate is left out.
        """
        averages = {name: value for name in self.aggregates if (value := self.average(name)) is not None}
        return {
            called: {name: score.to_dict() for name, score in self.tasks.items()},
            self.average_name: averages if self.aggregates else round(self.average() or 0.0, 4),
            **self.facts,
            **({"setting": self.setting} if self.setting else {}),
        }


def average_name(found: Collection[str], published: Collection[str]) -> str:
    """Return ``Avg.`` if all tasks of the published average are present, otherwise ``mean of n tasks``."""
    if set(published) <= set(found):
        return "Avg."
    return f"mean of {len(found)} task{'s' if len(found) > 1 else ''}"


def headline_name(scores: Iterable[str]) -> str | None:
    """Return a model's headline metric: the average over similarity tasks, or its first task."""
    names = [name for name in scores if name != "dev" and "(" not in name and not name.startswith(_NO_CORRELATION)]
    return next((name for name in names if name == "Avg." or name.startswith("mean of ")), next(iter(names), None))


def pair_cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine of each row of ``a`` with the same row of ``b``, summed in float64.

    As in SimCSE's SentEval, an undefined cosine (a zero vector, a NaN) counts as 0.

    Args:
        a: embeddings of the first sentences, ``(n, d)``, any float type, not necessarily of unit length.
        b: embeddings of the second sentences, ``(n, d)``.

    Returns:
        Cosines, float64 ``(n,)``.
    """
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(f"pair_cosines: expected two arrays of one shape (n, d), got {a.shape} and {b.shape}")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # one root of the product, not a product of roots: equal rows then give exactly 1 and tie with each other
        cosines = _row_dots(a, b) / np.sqrt(_row_dots(a, a) * _row_dots(b, b))
    return np.where(np.isfinite(cosines), cosines, 0.0)


def spearman(x: np.ndarray, y: np.ndarray, task: str = "scores") -> float:
    """Spearman's rank correlation; tied values share the mean of their ranks.

    Args:
        x: numbers ``(n,)``, for example cosines.
        y: numbers ``(n,)``, for example gold scores.

    Returns:
        The correlation, from -1 to 1.

    Raises:
        UndefinedScore: fewer than two pairs, or all values of one side equal.
    """
    if len(x) < 2:
        raise UndefinedScore(f"{task}: a rank correlation needs at least 2 pairs, found {len(x)}; add scored pairs")
    for values, name in ((x, "similarities"), (y, "gold scores")):
        if np.ptp(values) == 0:
            raise UndefinedScore(
                f"{task}: all {len(x)} {name} are equal ({values[0]:g}), so there is no rank correlation; "
                "use pairs of different similarity and a model that tells sentences apart"
            )
    return float(spearmanr(x, y).statistic)


def _row_dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("nd,nd->n", a, b, dtype=np.float64)
