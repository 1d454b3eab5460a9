"""Words and vectors together: half of each, as LanceDB's linear combination ranks them in a hybrid search."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DEPTH = 200  # documents that vectors and words each give
VECTORS_WEIGHT = 0.5
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


def _best(values_N: NDArray[np.float32], depth: int, above: float) -> NDArray[np.int64]:
    """Return the places of the ``depth`` highest values above a bound; of equal ones, the earlier."""
    places = np.flatnonzero(values_N > above)
    if len(places) > depth:
        lowest = np.partition(values_N[places], -depth)[-depth]
        places = places[values_N[places] >= lowest]
        places = places[np.argsort(-values_N[places], kind="stable")][:depth]
    return places
