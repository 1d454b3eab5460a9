"""Semantic textual similarity under the "all" protocol of SimCSE: cosine of a pair, Spearman per task, no regressor.

Papers aggregate the subsets of a task in three ways; all are computed:

* ``all``: one correlation over all pairs of the task, the headline score, as in SimCSE and PromCSE;
* ``mean``: mean of the correlations of the subsets;
* ``wmean``: the same, weighted by the number of pairs.

Scores are correlations times 100. The published ``Avg.`` is the mean of the seven scores, each
rounded to two decimals; it exists only if all seven tasks are present.

CxC-STS is Spearman on samples of caption pairs, PromCSE's measure of domain shift (table 2). Each repetition draws
queries, then one pair per query. PromCSE draws 2,500 of 5,000 images with replacement; Parekh et al. 2021 draw half of
the captions, which gives the same mean with about half the spread. The setting is part of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from cse.data.tasks.kinds import CaptionPairs, ScoredPairs, sentences_of
from cse.errors import CseError
from cse.evaluation.measures import Averaged, Score, TextEncoder, UndefinedScore, Vectors, spearman

SEVEN_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
AGGREGATES = ("all", "mean", "wmean")


def evaluate_sts(
    encoder: TextEncoder, tasks: Sequence[ScoredPairs], batch_size: int | None = None, progress: bool = False
) -> Averaged:
    """Score an encoder on similarity tasks, see ``score_sts``; each distinct sentence is encoded once, in one call."""
    return score_sts(Vectors(encoder, sentences_of(tasks), batch_size, progress), tasks)


def score_sts(vectors: Vectors, tasks: Sequence[ScoredPairs]) -> Averaged:
    """Score given embeddings on similarity tasks.

    A task's values are ``all`` and, where every subset has a correlation, ``mean`` and ``wmean``; its fact
    ``undefined_subsets`` counts subsets without one, if any.
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


@dataclass(frozen=True)
class Bootstrap:
    """How caption pairs are sampled.

    Attributes:
        query: what to draw first, ``image`` (PromCSE) or ``caption`` (Parekh et al.).
        share: fraction of the queries drawn per repetition.
        seed: seed for numpy's legacy generator, as in PromCSE's evaluator.
    """

    query: Literal["image", "caption"] = "image"
    share: float = 0.5
    replace: bool = True
    repetitions: int = 1000
    seed: int = 123


def score_cxc(vectors: Vectors, pairs: CaptionPairs, how: Bootstrap | None = None) -> Score:
    """Return mean and population standard deviation over the repetitions, and the score of all pairs at once."""
    how = how or Bootstrap()
    cosines = vectors.cosines(pairs.sentence1, pairs.sentence2)
    all_pairs = 100 * spearman(cosines, pairs.score, "CxC-STS")
    query = pairs.image if how.query == "image" else pairs.caption
    order = np.argsort(query, kind="stable")
    _, starts, sizes = np.unique(query[order], return_index=True, return_counts=True)
    count = int(len(sizes) * how.share)
    if count < 2:
        raise CseError(f"CxC-STS: {len(sizes)} {how.query}s are too few to sample {how.share:g} of them")
    rng = np.random.RandomState(how.seed)
    scores = np.empty(how.repetitions)
    for repetition in range(how.repetitions):
        drawn = rng.choice(len(sizes), count, replace=how.replace)
        rows = order[starts[drawn] + rng.randint(0, sizes[drawn])]  # one draw per query, in turn
        # without spearman's checks and p-value, which would take most of the time
        a, b = (rankdata(values[rows]) - (count + 1) / 2 for values in (cosines, pairs.score))
        scores[repetition] = a @ b / np.sqrt((a @ a) * (b @ b))
    values = {"mean": 100 * float(scores.mean()), "std": 100 * float(scores.std()), "all_pairs": all_pairs}
    facts = {
        "drawn": count, "query": how.query, "replace": how.replace, "repetitions": how.repetitions, "seed": how.seed,
    }  # fmt: skip
    replacement = "with" if how.replace else "without"
    setting = f"{how.repetitions:,} samples of {count:,} {how.query}s {replacement} replacement, seed {how.seed}"
    return Score(values, setting, facts)
