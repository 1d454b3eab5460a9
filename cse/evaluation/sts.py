"""Semantic textual similarity under the "all" protocol of SimCSE: cosine of a pair, Spearman per task, no regressor.

Papers aggregate the subsets of a task in three ways; all are computed:

* ``all``: one correlation over all pairs of the task, the headline score, as in SimCSE and PromCSE;
* ``mean``: mean of the correlations of the subsets;
* ``wmean``: the same, weighted by the number of pairs.

Scores are correlations times 100. The published ``Avg.`` is the mean of the seven scores, each
rounded to two decimals; it exists only if all seven tasks are present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from cse.data.tasks.kinds import ScoredPairs, sentences_of
from cse.errors import CseError
from cse.evaluation.measures import UndefinedScore, average_name, spearman
from cse.evaluation.vectors import TextEncoder, Vectors

SEVEN_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
Aggregate = Literal["all", "mean", "wmean"]
AGGREGATES: tuple[Aggregate, ...] = ("all", "mean", "wmean")


@dataclass(frozen=True)
class StsScore:
    """Scores of one task, correlations times 100.

    Attributes:
        all: Spearman over all pairs.
        mean: mean over the subsets; None if one of them has no correlation.
        wmean: mean over the subsets weighted by pairs; None likewise.
        pairs: number of pairs.
        subsets: Spearman of each subset; None if undefined (constant scores, a single pair).
    """

    all: float
    mean: float | None
    wmean: float | None
    pairs: int
    subsets: dict[str, float | None]


@dataclass(frozen=True)
class StsResults:
    """Scores by task, in the order of evaluation, and their average.

    Attributes:
        tasks: scores by task.
        sentences: distinct sentences encoded.
        items: ``cosine`` and ``gold`` of each pair by task, float64 ``(n,)``.
    """

    tasks: dict[str, StsScore]
    sentences: int
    items: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, compare=False)

    @property
    def average_name(self) -> str:
        """``Avg.`` if all seven tasks are present, otherwise ``mean of n tasks``."""
        return average_name(self.tasks, SEVEN_TASKS)

    def average(self, aggregate: Aggregate = "all") -> float | None:
        """Mean of the scores, rounded to two decimals, of the tasks that ``average_name`` covers.

        ``Avg.`` ignores tasks other than the seven. None if a task lacks the aggregate.
        """
        names = SEVEN_TASKS if self.average_name == "Avg." else tuple(self.tasks)
        scores = [getattr(self.tasks[name], aggregate) for name in names]
        return None if None in scores else float(np.mean([round(score, 2) for score in scores]))

    def to_dict(self) -> dict[str, Any]:
        """Return nested numbers for JSON and ``dvc metrics``; undefined scores are left out.

        ``{"sts": {"STS12": {"all": ..., "mean": ..., "wmean": ..., "pairs": 3108}, ...}, "Avg.": {"all": ...},
        "pairs": ..., "sentences": ...}``; ``undefined_subsets`` counts subsets without a correlation, if any.
        """
        tasks = {}
        for name, score in self.tasks.items():
            scores = {aggregate: getattr(score, aggregate) for aggregate in AGGREGATES}
            undefined = sum(value is None for value in score.subsets.values())
            tasks[name] = {**_present(scores), "pairs": score.pairs}
            if undefined:
                tasks[name]["undefined_subsets"] = undefined
        return {
            "sts": tasks,
            self.average_name: _present({aggregate: self.average(aggregate) for aggregate in AGGREGATES}),
            "pairs": sum(score.pairs for score in self.tasks.values()),
            "sentences": self.sentences,
        }


def evaluate_sts(
    encoder: TextEncoder, tasks: Sequence[ScoredPairs], batch_size: int = 64, progress: bool = False
) -> StsResults:
    """Score an encoder on similarity tasks; each distinct sentence is encoded once, in one call.

    Args:
        encoder: see ``TextEncoder``.
        tasks: the tasks, with distinct names.
        batch_size: sentences per forward pass.
        progress: whether the encoder shows its progress bar.

    Raises:
        CseError: no tasks, two with the same name, or an embedding that is not finite.
        UndefinedScore: a task whose gold scores or cosines are all equal, or with fewer than two pairs.
    """
    names = [task.name for task in tasks]
    if not names:
        raise CseError("evaluation: no similarity tasks; check data.evaluation_path")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CseError(f"{twice}: two similarity tasks have this name; rename one")
    vectors = Vectors(encoder, sentences_of(tasks), batch_size, progress)
    return score_sts(vectors, tasks)


def score_sts(vectors: Vectors, tasks: Sequence[ScoredPairs]) -> StsResults:
    """Score given embeddings on similarity tasks.

    Raises:
        UndefinedScore: a task whose gold scores or cosines are all equal, or with fewer than two pairs.
    """
    items = {
        task.name: {"cosine": vectors.cosines(task.sentence1, task.sentence2), "gold": task.score} for task in tasks
    }
    scores = {task.name: _score(task, items[task.name]["cosine"]) for task in tasks}
    return StsResults(scores, len(set(sentences_of(tasks))), items)


def _score(task: ScoredPairs, cosines: np.ndarray) -> StsScore:
    subset_of = np.asarray(task.subset)
    subsets: dict[str, float | None] = {}
    sizes = []
    for name in dict.fromkeys(task.subset):
        rows = subset_of == name
        sizes.append(int(rows.sum()))
        try:
            subsets[name] = 100 * spearman(cosines[rows], task.score[rows], f"{task.name} {name}")
        except UndefinedScore:
            subsets[name] = None
    values = [value for value in subsets.values() if value is not None]
    complete = len(values) == len(subsets) > 0
    return StsScore(
        all=100 * spearman(cosines, task.score, task.name),
        mean=float(np.mean(values)) if complete else None,
        wmean=float(np.average(values, weights=sizes)) if complete else None,
        pairs=len(task),
        subsets=subsets,
    )


def _present(scores: Mapping[Any, float | None]) -> dict[str, Any]:
    return {name: value for name, value in scores.items() if value is not None}
