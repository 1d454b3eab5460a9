"""CxC-STS: Spearman on samples of caption pairs, PromCSE's measure of domain shift (table 2).

Each repetition draws queries, then one pair per query. PromCSE draws 2,500 of 5,000 images with replacement; Parekh
et al. 2021 draw half of the captions, which gives the same mean with about half the spread. The setting is part of
the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from cse.data.tasks.kinds import CaptionPairs
from cse.errors import CseError
from cse.evaluation.measures import Score, spearman
from cse.evaluation.vectors import Vectors


@dataclass(frozen=True)
class Bootstrap:
    """How pairs are sampled.

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


DEFAULT = Bootstrap()


def score_cxc(vectors: Vectors, pairs: CaptionPairs, how: Bootstrap = DEFAULT) -> Score:
    """Return mean and population standard deviation over the repetitions, and the score of all pairs at once.

    Every cosine is computed once.

    Raises:
        UndefinedScore: gold scores or cosines that are all equal.
    """
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
        scores[repetition] = _rank_correlation(cosines[rows], pairs.score[rows])
    values = {"mean": 100 * float(scores.mean()), "std": 100 * float(scores.std()), "all_pairs": all_pairs}
    facts = {"drawn": count} | {name: getattr(how, name) for name in ("query", "replace", "repetitions", "seed")}
    replacement = "with" if how.replace else "without"
    setting = f"{how.repetitions:,} samples of {count:,} {how.query}s {replacement} replacement, seed {how.seed}"
    return Score(values, setting, facts)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman without checks and p-value, which would take most of the time."""
    a, b = (rankdata(values) - (len(values) + 1) / 2 for values in (x, y))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
