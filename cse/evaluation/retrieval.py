"""Measures of retrieval, by exact search.

Of the user's own queries, as trec_eval defines them: ``nDCG@k = DCG@k / ideal DCG@k`` with
``DCG@k = sum_{i <= k} g_i / log2(i + 1)``: the gain ``g`` is the grade itself (linear), and the ideal ranking takes all
judged documents of the query, also those that the collection lacks: they are never found. A document without a
judgement, or with a grade below 1, has gain 0 and is not relevant. Recall@k, MRR@k (reciprocal rank of the first
relevant document, 0 beyond k) and average precision (over the whole ranking) see only whether a document is relevant.
Of equal cosines, the document that comes first in the corpus ranks higher. A query that is itself a document does not
find it, as in BEIR. Beside the vectors, nDCG@10 of words alone (BM25), and of words and vectors together (see
``cse.search.hybrid``).

Of paraphrases, as in D2CSE's tables 3 and 4: each sentence of an STS-B pair with gold score 5 retrieves the other. The
papers do not state the candidates: here each string occurs once and is never its own candidate, which alone agrees with
D2CSE's figures. One query with near-identical candidates is shown by itself: is the paraphrase ranked first (D2CSE
table 2)?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cse.data.tasks.beir import IDS, document_ids, read_beir
from cse.data.tasks.kinds import Retrieval, ScoredPairs
from cse.errors import CseError
from cse.evaluation.measures import Score, Vectors
from cse.runtime.encode import unit_rows
from cse.search.hybrid import search
from cse.search.words import Words

if TYPE_CHECKING:
    from cse.runtime.onnx_encoder import OnnxEncoder
    from cse.search.table import Mode, SearchTable

NDCG, MRR, RECALL, MAP = "nDCG@10", "MRR@10", {10: "recall@10", 100: "recall@100"}, "MAP"
MEASURES = (NDCG, MRR, *RECALL.values(), MAP)
WITH_WORDS, OF_WORDS = f"{NDCG} with words", f"{NDCG} of words"
FOUND = tuple(name for name in MEASURES if name != MAP)  # MAP sees the whole ranking, a search its first 100
_CUT, _DEPTH, _MISSED = 10, 100, 1 << 30
_CELLS = 1 << 24  # of a block of cosines: 64 MiB of float32
_BLOCK = 1024  # queries of paraphrases
CUTS = (1, 3, 5)
_PARAPHRASE = 5.0  # gold score, at least
SHOWN = 5  # nearest sentences kept for reading
# the example of D2CSE's table 2, written as in STS-B; the second candidate has gold 5
QUERY = "you can do it , too ."
CANDIDATES = ("you can use it , too .", "yes , you can do it .", "can you do it ?")
EXAMPLE = (QUERY, *CANDIDATES)


def score_queries(
    query_QD: np.ndarray,
    passage_PD: np.ndarray,
    task: Retrieval,
    first_N: np.ndarray | None = None,
    *,
    words: bool = False,
) -> dict[str, np.ndarray]:
    """Return each of ``MEASURES`` by query, from 0 to 1, float64 ``(q,)``; with words ``WITH_WORDS``, ``OF_WORDS`` too.

    Vectors are of unit length, float32. A document is as near as its nearest passage.

    Args:
        first_N: number of each document's first passage; None: each document is one.
    """
    lexical = Words(task.documents).scores(task.queries) if words else None
    grade = np.maximum(task.relevance, 0)
    order = np.argsort(task.query, kind="stable")  # judgements by query
    bounds = np.searchsorted(task.query[order], np.arange(len(query_QD) + 1))
    measures = (*MEASURES, WITH_WORDS, OF_WORDS) if words else MEASURES
    values = {name: np.empty(len(query_QD)) for name in measures}
    for start, cosine_BP in cosine_blocks(query_QD, passage_PD):
        for query, cosine_P in enumerate(cosine_BP, start):
            cosine_N, place_N = (cosine_P, None) if first_N is None else nearest_passages(cosine_P, first_N)
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
                for name, score_N in ((WITH_WORDS, search(cosine_N, bm25_N, passage_PD, place_N)), (OF_WORDS, bm25_N)):
                    values[name][query] = score_ranks(_ranks(score_N, places), grades)[NDCG]
    return values


def nearest_passages(cosine_P: np.ndarray, first_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosine of each document's nearest passage, and the place of this, of equal ones the first."""
    cosine_N = np.maximum.reduceat(cosine_P, first_N)
    document_P = np.repeat(np.arange(len(first_N)), np.diff(first_N, append=len(cosine_P)))
    nearest = np.flatnonzero(cosine_P == cosine_N[document_P])[::-1]
    place_N = np.empty_like(first_N)
    place_N[document_P[nearest]] = nearest  # the last one that is written stays
    return cosine_N, place_N


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


def measure_search(
    table: SearchTable, encoder: OnnxEncoder | None, role: str | None, folder: str, modes: Sequence[Mode]
) -> dict[str, dict[str, float]]:
    """Return ``FOUND`` times 100 for each way to search, from the first 100 documents of each query."""
    task = read_beir(Path(folder), Path(folder).name)
    ids, _ = document_ids(Path(folder))
    place = {name: number for number, name in enumerate(ids)}
    documents = len(task.documents)
    if table.facts["id_column"] not in IDS or len(table) != documents:
        raise CseError(
            f"{table.url}: {len(table):,} documents, not the {documents:,} of {folder}; index that folder with its ids"
        )
    vectors = None if encoder is None else encoder.encode(task.queries, normalize=True, role=role)
    grade = np.maximum(task.relevance, 0)
    scores: dict[str, dict[str, float]] = {}
    for mode in modes:
        values = []
        for query, hits in enumerate(table.search(task.queries, vectors, _DEPTH + 1, mode)):
            judged = np.flatnonzero((task.query == query) & (grade > 0))
            relevant = task.document[judged]
            own = -1 if task.own is None else task.own[query]
            ranked = [place.get(str(hit.id), _MISSED) for hit in hits]
            ranked = [document for document in ranked if document != own or own in relevant][:_DEPTH]
            rank = {document: number for number, document in enumerate(ranked, start=1)}
            ranks = np.array([rank.get(document, _MISSED) for document in relevant.tolist()])
            values.append(score_ranks(ranks, grade[judged]))
        scores[mode] = {name: 100 * float(np.mean([value[name] for value in values])) for name in FOUND}
    return scores


def _ranks(score_N: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the rank of the documents at some places: 1, the better ones, and the equal ones before them."""
    return np.array(
        [1 + (score_N > score_N[p]).sum() + (score_N[:p] == score_N[p]).sum() if p >= 0 else np.inf for p in places]
    )


def cosine_blocks(
    query_QD: np.ndarray, document_ND: np.ndarray, cells: int = _CELLS
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first query of each block of at most ``cells`` and its cosines with all documents, float32 ``(b, n)``.

    Never holds the whole ``(q, n)`` table. Equal documents have exactly equal cosines, so that ties are ties: a matrix
    product alone may round equal columns differently. Documents may lie in a file: they are read, not copied.
    """
    seen: dict[int, int] = {}
    first = np.array([seen.setdefault(hash(row.tobytes()), place) for place, row in enumerate(document_ND)])
    later = np.flatnonzero(first != np.arange(len(first)))
    step = max(1, cells // len(document_ND))
    for start in range(0, len(query_QD), step):
        block_BN = query_QD[start : start + step] @ document_ND.T
        block_BN[:, later] = block_BN[:, first[later]]
        yield start, block_BN


@dataclass(frozen=True)
class Example:
    """A query of a paraphrase, its partner's rank (1 is nearest), and the nearest candidates with their cosines."""

    query: str
    partner: str
    rank: int
    nearest: list[tuple[str, float]]


def score_retrieval(vectors: Vectors, pairs: ScoredPairs) -> Score:
    """Look up the partner of each sentence of the pairs with gold score 5; recall is in percent.

    A partner's rank is 1 plus the number of candidates that are strictly nearer. The fact ``near_identical`` has the
    cosine of each candidate to the query of ``EXAMPLE``.
    """
    gold = zip(pairs.sentence1, pairs.sentence2, pairs.score.tolist(), strict=True)
    alike = [(one, other) for one, other, score in gold if score >= _PARAPHRASE and one != other]
    if not alike:
        raise CseError(f"{pairs.name}: no pair has a gold score of {_PARAPHRASE:g}; give pairs that are paraphrases")
    pool = list(dict.fromkeys([*pairs.sentence1, *pairs.sentence2]))
    place = {text: number for number, text in enumerate(pool)}
    both = [*alike, *((other, one) for one, other in alike)]
    own, wanted = np.array([(place[one], place[other]) for one, other in both]).T
    unit_ND = unit_rows(vectors.of(pool).astype(np.float64))
    examples = []
    for start in range(0, len(own), _BLOCK):
        block = slice(start, start + _BLOCK)
        cosines_QN = unit_ND[own[block]] @ unit_ND.T
        cosines_QN[np.arange(len(cosines_QN)), own[block]] = -np.inf
        target_Q = cosines_QN[np.arange(len(cosines_QN)), wanted[block]]
        rank_Q = 1 + (cosines_QN > target_Q[:, None]).sum(axis=1)
        nearest_QK = np.argsort(-cosines_QN, axis=1, kind="stable")[:, :SHOWN]
        for q, (query, partner) in enumerate(zip(own[block], wanted[block], strict=True)):
            nearest = [(pool[i], float(cosines_QN[q, i])) for i in nearest_QK[q] if i != query]
            examples.append(Example(pool[query], pool[partner], int(rank_Q[q]), nearest))
    ranks = np.array([example.rank for example in examples])
    recall = {f"recall@{cut}": 100 * float((ranks <= cut).mean()) for cut in CUTS}
    told = f"{len(examples)} queries from pairs with gold >= {_PARAPHRASE:g}, both directions"
    near = dict(zip(CANDIDATES, vectors.cosines([QUERY] * len(CANDIDATES), CANDIDATES).tolist(), strict=True))
    setting = f"{told}, {len(pool) - 1:,} distinct sentences"
    return Score(recall, setting, {"near_identical": near}, examples=examples)
