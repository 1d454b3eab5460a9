r"""Measures of retrieval, as trec_eval defines them, by exact search over all documents.

``nDCG@k = DCG@k / ideal DCG@k`` with ``DCG@k = sum_{i <= k} g_i / log2(i + 1)``: the gain ``g`` is the grade itself
(linear), and the ideal ranking takes all judged documents of the query, also those that the collection lacks: they are
never found. A document without a judgement, or with a grade
below 1, has gain 0 and is not relevant. Recall@k, MRR@k (reciprocal rank of the first relevant document, 0 beyond k)
and average precision (over the whole ranking) see only whether a document is relevant. Of equal cosines, the document
that comes first in the corpus ranks higher. A query that is itself a document does not find it, as in BEIR.

Beside the vectors, nDCG@10 of words alone (BM25), and of words and vectors together (see ``cse.search.hybrid``).
"""

from __future__ import annotations

import numpy as np

from cse.data.tasks.kinds import Retrieval
from cse.evaluation.tasks.cosines import cosine_blocks
from cse.search.hybrid import search
from cse.search.words import Words

NDCG, MRR, RECALL, MAP = "nDCG@10", "MRR@10", {10: "recall@10", 100: "recall@100"}, "MAP"
MEASURES = (NDCG, MRR, *RECALL.values(), MAP)
WITH_WORDS, OF_WORDS = f"{NDCG} with words", f"{NDCG} of words"
_CUT = 10


def score_queries(
    query_QD: np.ndarray, document_ND: np.ndarray, task: Retrieval, *, words: bool = False
) -> dict[str, np.ndarray]:
    """Return each of ``MEASURES`` by query, from 0 to 1, float64 ``(q,)``; with words ``WITH_WORDS``, ``OF_WORDS`` too.

    Args:
        query_QD: unit vectors of the queries, float32 ``(q, d)``.
        document_ND: unit vectors of the documents, float32 ``(n, d)``.
        task: the judgements, and which documents are queries themselves.
        words: whether to search the words of the documents as well.
    """
    lexical = Words(task.documents).scores(task.queries) if words else None
    grade = np.maximum(task.relevance, 0)
    order = np.argsort(task.query, kind="stable")  # judgements by query
    bounds = np.searchsorted(task.query[order], np.arange(len(query_QD) + 1))
    measures = (*MEASURES, WITH_WORDS, OF_WORDS) if words else MEASURES
    values = {name: np.empty(len(query_QD)) for name in measures}
    for start, cosine_BN in cosine_blocks(query_QD, document_ND):
        for query, cosine_N in enumerate(cosine_BN, start):
            judged = order[bounds[query] : bounds[query + 1]]
            relevant = judged[grade[judged] > 0]
            own = -1 if task.own is None else task.own[query]
            if own >= 0 and own not in task.document[relevant]:
                cosine_N[own] = -np.inf
            places, grades = task.document[relevant], grade[relevant]
            for name, value in score_ranks(_ranks(cosine_N, places), grades).items():
                values[name][query] = value
            if lexical is not None:
                bm25_N = np.where(np.isneginf(cosine_N), -np.inf, next(lexical))
                for name, score_N in ((WITH_WORDS, search(cosine_N, bm25_N, document_ND)), (OF_WORDS, bm25_N)):
                    values[name][query] = score_ranks(_ranks(score_N, places), grades)[NDCG]
    return values


def score_ranks(ranks: np.ndarray, grades: np.ndarray) -> dict[str, float]:
    """Return each of ``MEASURES`` of one query, from 0 to 1.

    Args:
        ranks: ranks of the relevant documents, from 1, ``(r,)``; infinite where a document is not there.
        grades: their grades, all above 0, ``(r,)``.
    """
    rising = np.sort(ranks)
    gain = np.where(ranks <= _CUT, grades / np.log2(ranks + 1), 0.0).sum()
    ideal = np.sort(grades)[::-1][:_CUT]
    return {
        NDCG: gain / (ideal / np.log2(np.arange(2, len(ideal) + 2))).sum(),
        MRR: 1 / rising[0] if rising[0] <= _CUT else 0.0,
        **{name: float((ranks <= cut).mean()) for cut, name in RECALL.items()},
        MAP: float((np.arange(1, len(rising) + 1) / rising).mean()),
    }


def _ranks(score_N: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the rank of the documents at some places: 1, the better ones, and the equal ones before them."""
    return np.array(
        [1 + (score_N > score_N[p]).sum() + (score_N[:p] == score_N[p]).sum() if p >= 0 else np.inf for p in places]
    )
