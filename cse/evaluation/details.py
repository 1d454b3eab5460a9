"""Data for figures: cosines of one task's pairs, their densities, a t-SNE of the sentences (D2CSE figure 2a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cse.data.tasks.kinds import ScoredPairs
from cse.evaluation.density import Density, densities
from cse.evaluation.vectors import Vectors
from cse.runtime.encode import unit_rows

DRAWN_TASK = "STS-B"
PERPLEXITY, SEED = 30.0, 42  # of t-SNE
DRAWN = 500  # sentences: t-SNE takes 2 seconds of processor for them, 23 for 2,000, and more dots show no more


@dataclass(frozen=True)
class PairDetails:
    """One task's pairs under an encoder.

    Attributes:
        cosine: of each pair, ``(n,)``.
        densities: densities of the cosines, over all pairs and by gold similarity.
        sentences: the ``m`` distinct sentences, of more than 500 as many at even distances.
        subset: subset where each first occurs.
        points: their t-SNE coordinates, ``(m, 2)``.
    """

    task: ScoredPairs
    cosine: np.ndarray
    densities: list[Density]
    sentences: list[str]
    subset: list[str]
    points: np.ndarray


def drawn_task(tasks: Sequence[ScoredPairs]) -> ScoredPairs:
    """Return the task to show in figures: STS-B if present, otherwise the first."""
    return next((task for task in tasks if task.name == DRAWN_TASK), tasks[0])


def pair_details(vectors: Vectors, task: ScoredPairs) -> PairDetails:
    """Return the details of one task's pairs for given embeddings."""
    cosine = vectors.cosines(task.sentence1, task.sentence2)
    places: dict[str, str] = {}
    for side in (task.sentence1, task.sentence2):
        for sentence, subset in zip(side, task.subset, strict=True):
            places.setdefault(sentence, subset)
    sentences = list(places)
    if len(sentences) > DRAWN:
        sentences = [sentences[n] for n in np.linspace(0, len(sentences) - 1, DRAWN).astype(int)]
    subset, points = [places[sentence] for sentence in sentences], tsne(vectors.of(sentences))
    return PairDetails(task, cosine, densities(cosine, task.score), sentences, subset, points)


def tsne(rows: np.ndarray) -> np.ndarray:
    """Project rows ``(n, d)`` of any length to the plane, ``(n, 2)``, by t-SNE on unit vectors; deterministic.

    Neighbours in the plane were neighbours in the space; distances between far groups mean nothing. Fewer than four
    rows cannot be projected: they all get the origin.
    """
    from sklearn.manifold import TSNE  # imports pandas: a second of every evaluation

    if len(rows) < 4:
        return np.zeros((len(rows), 2))
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    layout = TSNE(2, perplexity=perplexity, init="pca", random_state=SEED, n_jobs=-1)
    return np.asarray(layout.fit_transform(unit_rows(rows.astype(np.float64)).astype(np.float32)))
