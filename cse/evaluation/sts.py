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

import numpy as np

from cse.data.tasks.kinds import ScoredPairs, sentences_of
from cse.errors import CseError
from cse.evaluation.measures import Averaged, Score, UndefinedScore, spearman
from cse.evaluation.vectors import TextEncoder, Vectors

SEVEN_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
AGGREGATES = ("all", "mean", "wmean")


def evaluate_sts(
    encoder: TextEncoder, tasks: Sequence[ScoredPairs], batch_size: int | None = None, progress: bool = False
) -> Averaged:
    """Score an encoder on similarity tasks; each distinct sentence is encoded once, in one call.

    A task's values are ``all`` and, where every subset has a correlation, ``mean`` and ``wmean``; its fact
    ``undefined_subsets`` counts subsets without one, if any.

    Args:
        encoder: see ``TextEncoder``.
        batch_size: sentences per forward pass; None: the encoder's own.

    Raises:
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


def score_sts(vectors: Vectors, tasks: Sequence[ScoredPairs]) -> Averaged:
    """Score given embeddings on similarity tasks.

    Raises:
        UndefinedScore: a task whose gold scores or cosines are all equal, or with fewer than two pairs.
    """
    facts = {"pairs": sum(map(len, tasks)), "sentences": len(set(sentences_of(tasks)))}
    return Averaged({task.name: _score(vectors, task) for task in tasks}, SEVEN_TASKS, AGGREGATES, facts=facts)


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
