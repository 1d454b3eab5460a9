"""Sentences in two dimensions (D2CSE figure 2a): t-SNE on unit vectors."""

from __future__ import annotations

import numpy as np

from cse.runtime.encode import unit_rows

PERPLEXITY = 30.0
SEED = 42


def tsne(rows: np.ndarray) -> np.ndarray:
    """Project rows ``(n, d)`` of any length to the plane, ``(n, 2)``; deterministic.

    Neighbours in the plane were neighbours in the space; distances between far groups mean nothing. Fewer than four
    rows cannot be projected: they all get the origin.
    """
    from sklearn.manifold import TSNE  # imports pandas: a second of every evaluation

    if len(rows) < 4:
        return np.zeros((len(rows), 2))
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    layout = TSNE(2, perplexity=perplexity, init="pca", random_state=SEED, n_jobs=-1)
    return np.asarray(layout.fit_transform(unit_rows(rows.astype(np.float64)).astype(np.float32)))
