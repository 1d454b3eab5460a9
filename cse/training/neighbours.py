"""Pairs from plain sentences: two that are among each other's nearest, as the frozen encoder sees them.

In text of one field such pairs mostly mean the same: of the training questions of banking77, 93 % of the pairs among
each other's five nearest (MiniLM) ask for the same intent. They are positives that need no label, where a copy with
other dropout teaches little about the field.
"""

from __future__ import annotations

import numpy as np

from cse.training import mining


def mutual_neighbours(vectors_TD: np.ndarray, nearest: int) -> np.ndarray:
    """Return the pairs of texts that are among each other's ``nearest``, the earlier text first, in order.

    Args:
        vectors_TD: vector of each distinct text, of unit length.
        nearest: how many neighbours of each text count.

    Returns:
        Numbers of texts, int64 ``(P, 2)``; none twice.
    """
    nearest = min(nearest, len(vectors_TD) - 1)
    if nearest < 1:
        return np.empty((0, 2), np.int64)
    search = _exact if len(vectors_TD) <= mining.EXACT else mining.approximate_neighbours
    found_TK = search(vectors_TD, nearest)
    one = np.repeat(np.arange(len(vectors_TD)), found_TK.shape[1])
    pairs = np.stack([one, found_TK.ravel()], axis=1)
    pairs = np.sort(pairs[pairs[:, 1] >= 0], axis=1)
    distinct, times = np.unique(pairs, axis=0, return_counts=True)
    return distinct[times == 2].astype(np.int64)


def _exact(vectors_TD: np.ndarray, nearest: int) -> np.ndarray:
    """Return each text's nearest others, ``(T, nearest)`` in no order; the earlier of equals."""
    found_TK = np.empty((len(vectors_TD), nearest), np.int64)
    size = max(mining.CELLS // len(vectors_TD), 1)
    for start in range(0, len(vectors_TD), size):
        cosine_BT = vectors_TD[start : start + size] @ vectors_TD.T
        rows = np.arange(len(cosine_BT))
        cosine_BT[rows, start + rows] = -np.inf
        found_TK[start : start + size] = [mining.first_places(cosine_T, nearest) for cosine_T in cosine_BT]
    return found_TK
