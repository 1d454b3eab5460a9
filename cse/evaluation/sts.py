"""Semantic textual similarity under the "all" protocol of SimCSE: cosine of a pair, Spearman per task, no regressor.

Papers aggregate the subsets of a task in three ways; all are computed:

* ``all``: one correlation over all pairs of the task, the headline score, as in SimCSE and PromCSE;
* ``mean``: mean of the correlations of the subsets;
* ``wmean``: the same, weighted by the number of pairs.

Scores are correlations times 100. The published ``Avg.`` is the mean of the seven scores, each
rounded to two decimals; it exists only if all seven tasks are present.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cse.data.tasks.kinds import ScoredPairs, sentences_of
from cse.errors import CseError
from cse.evaluation.measures import Averaged, Score, UndefinedScore, spearman
from cse.evaluation.vectors import TextEncoder, Vectors

SEVEN_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
AGGREGATES = ("all", "mean", "wmean")


@dataclass(frozen=True)
class StsResults(Averaged):
    """Scores of similarity tasks: ``all`` and, where every subset has a correlation, ``mean`` and ``wmean``.

    Attributes:
        sentences: distinct sentences encoded.
    """

    published = SEVEN_TASKS
    sentences: int

    def to_dict(self) -> dict[str, Any]:
        """Return nested numbers for JSON and ``dvc metrics``; undefined scores are left out.

        ``{"sts": {"STS12": {"all": ..., "mean": ..., "wmean": ..., "pairs": 3108}, ...}, "Avg.": {"all": ...},
        "pairs": ..., "sentences": ...}``; ``undefined_subsets`` counts subsets without a correlation, if any.
        """
        averages = {aggregate: self.average(aggregate) for aggregate in AGGREGATES}
        return {
            "sts": {name: score.to_dict() for name, score in self.tasks.items()},
            self.average_name: {name: value for name, value in averages.items() if value is not None},
            "pairs": sum(score.facts["pairs"] for score in self.tasks.values()),
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
    return StsResults({task.name: _score(vectors, task) for task in tasks}, len(set(sentences_of(tasks))))


def _score(vectors: Vectors, task: ScoredPairs) -> Score:
    cosines, subset_of = vectors.cosines(task.sentence1, task.sentence2), np.asarray(task.subset)
    subsets: dict[str, float | None] = {}
    sizes = []
    for name in dict.fromkeys(task.subset):
        rows = subset_of == name
        sizes.append(int(rows.sum()))
        try:
            subsets[name] = 100 * spearman(cosines[rows], task.score[rows], f"{task.name} {name}")
        except UndefinedScore:
            subsets[name] = None
    defined = [value for value in subsets.values() if value is not None]
    undefined = len(subsets) - len(defined)
    values = {"all": 100 * spearman(cosines, task.score, task.name)}
    if defined and not undefined:
        values |= {"mean": float(np.mean(defined)), "wmean": float(np.average(defined, weights=sizes))}
    facts = {"pairs": len(task)} | ({"undefined_subsets": undefined} if undefined else {})
    return Score(values, facts=facts, items={"cosine": cosines, "gold": task.score}, subsets=subsets)
