"""What pictures and example lists are made of: cosines of one task's pairs, their densities, sentences in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cse.data.scored import ScoredPairs
from cse.evaluation.density import Density, densities
from cse.evaluation.sts import cosines_of
from cse.evaluation.tsne import tsne
from cse.evaluation.vectors import Vectors

DRAWN_TASK = "STS-B"


@dataclass(frozen=True)
class PairDetails:
    """One task's pairs as an encoder sees them.

    Attributes:
        task: the pairs.
        cosine: of each pair, ``(n,)``.
        densities: of the cosines, of all pairs and by gold similarity.
        sentences: distinct sentences, ``m`` of them.
        subset: where each was first seen.
        points: their place in the plane, ``(m, 2)``.
    """

    task: ScoredPairs
    cosine: np.ndarray
    densities: list[Density]
    sentences: list[str]
    subset: list[str]
    points: np.ndarray


def drawn_task(tasks: Sequence[ScoredPairs]) -> ScoredPairs:
    """Return the task that pictures show: STS-B where it is there, else the first."""
    return next((task for task in tasks if task.name == DRAWN_TASK), tasks[0])


def pair_details(vectors: Vectors, task: ScoredPairs) -> PairDetails:
    """Look at one task's pairs with embeddings that exist."""
    cosine = cosines_of(vectors, task)
    places: dict[str, str] = {}
    for side in (task.sentence1, task.sentence2):
        for sentence, subset in zip(side, task.subset, strict=True):
            places.setdefault(sentence, subset)
    sentences = list(places)
    points = tsne(vectors.of(sentences))
    return PairDetails(task, cosine, densities(cosine, task.score), sentences, list(places.values()), points)
