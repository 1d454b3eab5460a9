"""Words and vectors together: half of each, as LanceDB's linear combination ranks them, and then what is alike.

Documents that are alike are relevant to the same queries (van Rijsbergen 1979, the cluster hypothesis), so each of the
best documents gets a part of its score from those nearest to it: the regularised scores of Diaz (2007), in one step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DEPTH = 200  # documents that vectors and words each give
VECTORS_WEIGHT = 0.5
NEIGHBOURS, NEIGHBOURS_WEIGHT = 8, 0.3  # of a document among the best, and the part of its score that they give
_ROWS = 1000  # whose nearest documents are looked for at a time
_NEITHER = -1.0  # below every document that is found


def fuse(cosine_N: NDArray[np.float32], bm25_N: NDArray[np.float32], depth: int = DEPTH) -> NDArray[np.float64]:
    """Return the scores of all documents for one query, float64 ``(N,)`` from 0 to 1; -1 for those that neither finds.

    Vectors find the ``depth`` nearest documents, words the ``depth`` best with a word of the query. Cosines and BM25
    are each scaled from 0 to 1 among these, and a document that one side does not find has 0 there. A range without a
    width is 1 for cosines and 0 for words, as there.

    Args:
        cosine_N: cosines with the query; -inf for a document that is no candidate.
        bm25_N: BM25 of the query's words; 0 or less without a common word.
        depth: how many documents each side gives.
    """
    score_N = np.full(len(cosine_N), _NEITHER)
    near, worded = _best(cosine_N, depth, -np.inf), _best(bm25_N, depth, 0.0)
    for found, values_N, weight, flat in (
        (near, cosine_N, VECTORS_WEIGHT, 1.0),
        (worded, bm25_N, 1 - VECTORS_WEIGHT, 0.0),
    ):
        values = values_N[found].astype(np.float64)
        width = np.ptp(values) if len(values) else 0.0
        scaled = (values - values.min()) / width if width else np.full(len(values), flat)
        score_N[found] = np.maximum(score_N[found], 0.0) + weight * scaled
    return score_N


def search(
    cosine_N: NDArray[np.float32], bm25_N: NDArray[np.float32], document_ND: NDArray[np.float32], depth: int = DEPTH
) -> NDArray[np.float64]:
    """Return the scores of all documents for one query as a hybrid search ranks them, float64 ``(N,)``.

    The ``depth`` best of ``fuse`` lend each other their scores; all others have -1.

    Args:
        cosine_N: as ``fuse`` takes them.
        bm25_N: as ``fuse`` takes them.
        document_ND: unit vectors of the documents.
        depth: how many documents each side gives, and how many are found.
    """
    fused_N = fuse(cosine_N, bm25_N, depth)
    best = _best(fused_N, depth, _NEITHER)
    score_N = np.full(len(fused_N), _NEITHER)
    score_N[best] = lend(fused_N[best], document_ND[best])
    return score_N


def lend(score_K: NDArray[np.float64], vector_KD: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the scores of documents, each in part the mean score of those nearest to it among them ``(K,)``.

    Args:
        score_K: their own scores, best first: of equally near documents the better lend.
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
    return (1 - NEIGHBOURS_WEIGHT) * score_K + NEIGHBOURS_WEIGHT * lent_K


def _best(values_N: NDArray[np.floating[Any]], depth: int, above: float) -> NDArray[np.int64]:
    """Return the places of the ``depth`` highest values above a bound; of equal ones, the earlier."""
    places = np.flatnonzero(values_N > above)
    if len(places) > depth:
        lowest = np.partition(values_N[places], -depth)[-depth]
        places = places[values_N[places] >= lowest]
        places = places[np.argsort(-values_N[places], kind="stable")][:depth]
    return places
