"""Where a search for a text finds the document that the text belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cse.evaluation.tasks.cosines import cosine_blocks
from cse.search.hybrid import fuse
from cse.search.words import Words


def own_ranks(
    queries: Sequence[str],
    documents: Sequence[str],
    own_Q: Sequence[int] | np.ndarray,
    query_QD: np.ndarray,
    document_ND: np.ndarray,
) -> np.ndarray:
    """Return the rank of each query's own document, from 1, in a search by vectors and words, int64 ``(q,)``.

    Args:
        queries: texts of the queries.
        documents: texts of the documents.
        own_Q: number of each query's document.
        query_QD: unit vectors of the queries, float32 ``(q, d)``.
        document_ND: unit vectors of the documents, float32 ``(n, d)``.
    """
    bm25 = Words(documents).scores(queries)
    ranks = np.empty(len(queries), np.int64)
    for start, cosine_BN in cosine_blocks(query_QD, document_ND):
        for query, cosine_N in enumerate(cosine_BN, start):
            score_N, _ = fuse(cosine_N, next(bm25))
            ranks[query] = 1 + np.count_nonzero(score_N > score_N[own_Q[query]])
    return ranks
