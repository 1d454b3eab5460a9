"""Semantic textual similarity under the "all" protocol of SimCSE: cosine of a pair, Spearman per task, no regressor.

A task's score is ``all``, one correlation over all pairs of its subsets, as in SimCSE and PromCSE. Of STS12 to STS16 a
record also has what other papers report: the ``mean`` over the subsets, and ``wmean``, weighted by their pairs.
Scores are correlations times 100. The published ``Avg.`` is the mean of the seven scores, each
rounded to two decimals; it exists only if all seven tasks are present.

CxC-STS is Spearman on samples of caption pairs, PromCSE's measure of domain shift (table 2): each repetition draws half
as many images as there are, with replacement, then one pair of each. (Parekh et al. 2021 draw captions: the same mean
with about half the spread.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from cse.data.tasks.kinds import CaptionPairs, ScoredPairs, sentences_of
from cse.errors import CseError
from cse.evaluation.measures import Averaged, Score, TextEncoder, UndefinedScore, Vectors, spearman

SEVEN_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
REPETITIONS, SEED = 1000, 123  # of numpy's legacy generator, as in PromCSE's evaluator


def evaluate_sts(
    encoder: TextEncoder, tasks: Sequence[ScoredPairs], batch_size: int | None = None, progress: bool = False
) -> Averaged:
    """Score an encoder on similarity tasks, see ``score_sts``; each distinct sentence is encoded once, in one call."""
    return score_sts(Vectors(encoder, sentences_of(tasks), batch_size, progress), tasks)


def score_sts(vectors: Vectors, tasks: Sequence[ScoredPairs]) -> Averaged:
    """Score given embeddings on similarity tasks."""
    scores = {}
    for task in tasks:
        cosines = vectors.cosines(task.sentence1, task.sentence2)
        values = {"all": 100 * spearman(cosines, task.score, task.name)} | _of_subsets(task, cosines)
        scores[task.name] = Score(values, facts={"pairs": len(task)}, items={"cosine": cosines, "gold": task.score})
    return Averaged(scores, SEVEN_TASKS)


def _of_subsets(task: ScoredPairs, cosines: np.ndarray) -> dict[str, float]:
    if task.subset is None:
        return {}
    names, subset, sizes = np.unique(task.subset, return_inverse=True, return_counts=True)
    parts = [subset == place for place in range(len(names))]
    try:
        found = [100 * spearman(cosines[part], task.score[part], task.name) for part in parts]
    except UndefinedScore:  # of a subset whose scores are all equal
        return {}
    return {"mean": float(np.mean(found)), "wmean": float(np.average(found, weights=sizes))}


def score_cxc(vectors: Vectors, pairs: CaptionPairs) -> Score:
    """Return mean and population standard deviation over the repetitions, and the score of all pairs at once."""
    cosines = vectors.cosines(pairs.sentence1, pairs.sentence2)
    all_pairs = 100 * spearman(cosines, pairs.score, "CxC-STS")
    order = np.argsort(pairs.image, kind="stable")
    _, starts, sizes = np.unique(pairs.image[order], return_index=True, return_counts=True)
    count = len(sizes) // 2
    if count < 2:
        raise CseError(f"CxC-STS: {len(sizes)} images are too few to sample half of them")
    rng = np.random.RandomState(SEED)
    scores = np.empty(REPETITIONS)
    for repetition in range(REPETITIONS):
        drawn = rng.choice(len(sizes), count)
        rows = order[starts[drawn] + rng.randint(0, sizes[drawn])]  # one draw per image, in turn
        # without spearman's checks and p-value, which would take most of the time
        a, b = (rankdata(values[rows]) - (count + 1) / 2 for values in (cosines, pairs.score))
        scores[repetition] = a @ b / np.sqrt((a @ a) * (b @ b))
    values = {"mean": 100 * float(scores.mean()), "std": 100 * float(scores.std()), "all_pairs": all_pairs}
    setting = f"{REPETITIONS:,} samples of {count:,} images with replacement, seed {SEED}"
    return Score(values, setting)
