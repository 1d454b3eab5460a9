"""Words and vectors together: half of each, and then what is alike.

BM25 counts by its share of the best document's: 0 is what a document without the words has, whatever others have (the
theoretical minimum of Bruch et al. 2023, arXiv 2210.11934). So a word that one document alone has is worth as much
as the nearest vector.

Documents that are alike are relevant to the same queries (van Rijsbergen 1979, the cluster hypothesis), so each of the
best documents gives up a part of what its vector is worth for the mean score of those nearest to it: the regularised
scores of Diaz (2007), in one step. What its words are worth it keeps: those alike do not have its part number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cse.runtime.encode import best_places

DEPTH = 200  # documents that vectors and words each give
VECTORS_WEIGHT = 0.5
NEIGHBOURS, NEIGHBOURS_WEIGHT = 8, 0.3  # of a document among the best, and the part of their score that it gets
_ROWS = 1000  # whose nearest documents are looked for at a time
_NEITHER = -1.0  # below every document that is found


def fuse(
    cosine_N: NDArray[np.float32], bm25_N: NDArray[np.float32], depth: int = DEPTH
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores of all documents for one query, and what vectors give of them, each float64 ``(N,)``.

    Vectors find the ``depth`` nearest documents, words the ``depth`` best with a word of the query. Cosines are scaled
    from 0 to 1 among these, BM25 is divided by the best; a document that one side does not find has 0 there, and one
    that neither finds scores -1.

    Args:
        cosine_N: cosines with the query; -inf for a document that is no candidate.
        bm25_N: BM25 of the query's words; 0 or less without a common word.
        depth: how many documents each side gives.
    """
    near, worded = best_places(cosine_N, depth), best_places(bm25_N, depth, above=0.0)
    vectors_N, words_N = np.zeros((2, len(cosine_N)))
    if len(near):
        cosines = cosine_N[near].astype(np.float64)
        width = np.ptp(cosines)
        vectors_N[near] = VECTORS_WEIGHT * ((cosines - cosines.min()) / width if width else 1.0)
    if len(worded):
        bm25 = bm25_N[worded].astype(np.float64)
        words_N[worded] = (1 - VECTORS_WEIGHT) * bm25 / bm25.max()
    score_N = np.full(len(cosine_N), _NEITHER)
    found = np.union1d(near, worded)
    score_N[found] = (vectors_N + words_N)[found]
    return score_N, vectors_N


def search(
    cosine_N: NDArray[np.float32],
    bm25_N: NDArray[np.float32],
    vector_PD: NDArray[np.float32],
    place_N: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Return the scores of all documents for one query as a hybrid search ranks them, float64 ``(N,)``.

    The ``DEPTH`` best of ``fuse`` lend each other their scores; all others have -1.

    Args:
        vector_PD: unit vectors of the documents, or of their passages.
        place_N: where that of each document is among them; None: they are in order.
    """
    fused_N, vectors_N = fuse(cosine_N, bm25_N)
    best = best_places(fused_N, DEPTH, above=_NEITHER)
    score_N = np.full(len(fused_N), _NEITHER)
    vector_KD = vector_PD[best if place_N is None else place_N[best]]
    score_N[best] = fused_N[best] + NEIGHBOURS_WEIGHT * (lent(fused_N[best], vector_KD) - vectors_N[best])
    return score_N


def lent(score_K: NDArray[np.float64], vector_KD: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean score of the documents nearest to each ``(K,)``; of one alone, its own.

    Args:
        score_K: their own scores; of equally near documents the earlier lend.
        vector_KD: their unit vectors.
    """
    count = min(NEIGHBOURS, len(score_K) - 1)
    if count < 1:
        return score_K
    lent_K = np.empty(len(score_K))
    for start in range(0, len(score_K), _ROWS):
        cosine_BK = vector_KD[start : start + _ROWS] @ vector_KD.T
        row = np.arange(len(cosine_BK))
        cosine_BK[row, start + row] = -np.inf
        nearest = np.argsort(-cosine_BK, axis=1, kind="stable")[:, :count]
        lent_K[start + row] = score_K[nearest].mean(axis=1)
    return lent_K
