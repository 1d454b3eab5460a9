"""The collection that queries are trained against: its documents' vectors, and how a teacher ranks them.

Rows are pairs of a query and its document; the distinct documents are the collection. Their vectors are the bare
backbone's and never change, so they are computed once. A teacher scores each query against all of them: by cosine
and, for words, by BM25 (Robertson and Zaragoza 2009). It costs no labels. Of a large collection no more than a block of
vectors and scores is in memory at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import softmax

from cse.data.store import AGAIN, STAND_INS, PreparedData, texts_in
from cse.errors import CseError
from cse.evaluation.score import UnitVectors
from cse.losses.collection import NO_DOCUMENT, Targets
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.uses import role_for
from cse.search.words import DOCUMENTS, Words

CANDIDATES = 200  # best documents of the teacher that get a share of its softmax
WORDS = 0.5  # weight of BM25 beside the cosines in the teacher's scores
TEMPERATURE = 0.5  # of the teacher's scores, which have a standard deviation of 1
MOST_DOCUMENTS = 20_000  # that a step ranks; of more, half as many at random
OWN_SHARE = 0.9  # of a pair's own document, the rest is the teacher's
_BLOCK = 4_000_000  # scores at a time
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class QueryPairs:
    """Queries and the documents that belong to them.

    Attributes:
        place: number of each row's document ``(n,)``.
        stands_in: whether each row's query was taken from its document ``(n,)``.
        source: number of each row's source ``(n,)``.
    """

    queries: list[str]
    documents: Sequence[str]
    place: NDArray[np.int64]
    stands_in: NDArray[np.bool_]
    source: NDArray[np.int64]

    def only(self, rows: NDArray[np.int64]) -> QueryPairs:
        queries = [self.queries[row] for row in rows]
        return QueryPairs(queries, self.documents, self.place[rows], self.stands_in[rows], self.source[rows])

    def times(self, weights: Sequence[float]) -> NDArray[np.int64]:
        """Return how often each row comes in a pass, so that a further source has its weight in rows of the first."""
        counts = np.bincount(self.source, minlength=len(weights) + 1)
        wanted = counts[0] * np.array([1.0, *weights]) / np.maximum(counts, 1)
        return np.maximum(wanted.round().astype(np.int64), 1)[self.source]


def pairs_of(sources: Sequence[tuple[pa.Table, bool]], documents: Sequence[str] | None = None) -> QueryPairs:
    """Return the pairs of several sources one after the other, over one collection.

    Args:
        sources: rows of view ``pairs``, and whether their queries stand in for real ones.
        documents: all documents, each once; None: those of the rows.
    """
    queries: list[str] = []
    number: dict[str, int] = {}
    place, stands_in, source = [], [], []
    for which, (rows, taken) in enumerate(sources):
        queries += texts_in(rows, "sent0")
        place += [number.setdefault(text, len(number)) for text in texts_in(rows, "sent1")]
        stands_in += [taken] * len(rows)
        source += [which] * len(rows)
    where = np.array(place, np.int64)
    if documents is not None:
        found = {number[text]: at for at, text in enumerate(documents) if text in number}
        missing = next((text for text in number if number[text] not in found), None)
        if missing is not None:
            raise CseError(f"post.kind: {missing[:40]!r} is in a row and not among the documents; {AGAIN}")
        where = np.array([found[each] for each in place], np.int64)
    collection = list(number) if documents is None else documents
    return QueryPairs(queries, collection, where, np.array(stands_in, bool), np.array(source, np.int64))


def teach(
    pairs: QueryPairs, query_nD: NDArray[np.float32], document_ND: NDArray[np.float32], words: float = WORDS
) -> Targets:
    """Return the shares that a teacher gives to the documents, for each query.

    A score is the cosine plus ``words`` times BM25, each less its mean over the documents and divided by its standard
    deviation; a softmax over the best ``CANDIDATES`` makes shares of the scores. All documents are scored, a block of
    them after the other: once for means and deviations, and once more for the best. Of more than ``MOST_DOCUMENTS``,
    half as many at random are the targets' sample. The documents' unit vectors ``(N, D)`` may lie in a file.
    """
    queries, documents = len(pairs.queries), len(pairs.documents)
    kept = min(CANDIDATES, documents - (1 if documents > 1 else 0))
    best = np.zeros((queries, kept), np.int64)
    score_nK = np.full((queries, kept), -np.inf, np.float32)
    for rows, first, score_bM in _standardised(pairs, query_nD, document_ND, words):
        row, own = np.arange(len(score_bM)), pairs.place[rows] - first
        taken = row[pairs.stands_in[rows] & (own >= 0) & (own < score_bM.shape[1])]
        score_bM[taken, own[taken]] = -np.inf
        nearest = np.broadcast_to(np.arange(score_bM.shape[1]), score_bM.shape)
        if score_bM.shape[1] > kept:
            nearest = np.argpartition(-score_bM, kept - 1, axis=1)[:, :kept]
            score_bM = np.take_along_axis(score_bM, nearest, axis=1)
        score_bM = np.hstack([score_nK[rows], score_bM])
        chosen = np.argpartition(-score_bM, kept - 1, axis=1)[:, :kept]
        best[rows] = np.take_along_axis(np.hstack([best[rows], nearest + first]), chosen, axis=1)
        score_nK[rows] = np.take_along_axis(score_bM, chosen, axis=1)
    share_nK = softmax(score_nK / TEMPERATURE, axis=1)
    given = np.where(pairs.stands_in, 0.0, OWN_SHARE).astype(np.float32)
    count = MOST_DOCUMENTS // 2 if documents > MOST_DOCUMENTS else 0
    return Targets(
        place=np.column_stack([best, pairs.place]),
        share=np.column_stack([share_nK * (1 - given)[:, None], given]),
        own=np.where(pairs.stands_in, pairs.place, NO_DOCUMENT),
        sample=np.sort(np.random.default_rng(0).choice(documents, count, replace=False)),
    )


def _standardised(
    pairs: QueryPairs, query_nD: NDArray[np.float32], document_ND: NDArray[np.float32], words: float
) -> Iterator[tuple[slice, int, NDArray[np.float32]]]:
    """Yield some queries, the first document of a block, and the scores of its documents for them ``(b, M)``."""
    lexical = Words(pairs.documents) if words else None
    counts: Any = None if lexical is None else lexical.counts(pairs.queries)

    def parts() -> Iterator[tuple[slice, int, list[NDArray[np.float32]]]]:
        step = max(_BLOCK // min(len(document_ND), DOCUMENTS), 1)
        for number, first in enumerate(range(0, len(document_ND), DOCUMENTS)):
            vectors = np.asarray(document_ND[first : first + DOCUMENTS])
            for start in range(0, len(query_nD), step):
                rows = slice(start, start + step)
                found = [query_nD[rows] @ vectors.T]
                if lexical is not None:
                    found.append(lexical.block(counts[rows], number))
                yield rows, first, found

    total = np.zeros((2, 2, len(query_nD)))  # of values and of squares, by cosines and BM25
    for rows, _, found in parts():
        for kind, score_bM in enumerate(found):
            total[0, kind, rows] += score_bM.sum(axis=1, dtype=np.float64)
            total[1, kind, rows] += np.einsum("bm,bm->b", score_bM, score_bM, dtype=np.float64)
    mean, square = total / len(document_ND)
    deviation = np.sqrt(np.maximum(square - mean**2, 0)) + _LEAST_DEVIATION
    for rows, first, found in parts():
        score_bM = np.zeros_like(found[0])
        for kind, (weight, each) in enumerate(zip((1.0, words), found, strict=False)):
            scale, shift = (values[kind, rows][:, None] for values in (weight / deviation, mean))
            score_bM += (each - shift.astype(np.float32)) * scale.astype(np.float32)
        yield rows, first, score_bM


@dataclass(frozen=True)
class TaughtCollection:
    """Queries and their documents, the bare backbone's unit vectors of both, and what a teacher thinks of these."""

    pairs: QueryPairs
    documents: NDArray[np.float32]
    queries: NDArray[np.float32]
    targets: Targets


def collection_from(
    encoder: SentenceEncoder, sources: Sequence[PreparedData], most: int | None = None
) -> TaughtCollection:
    """Encode the documents, let the bare backbone and BM25 score them for each query, and say how many there are.

    Args:
        most: queries, at most, picked at even intervals; None: all. The documents of all rows stay.
    """
    for data in sources:
        if data.view != "pairs":
            raise CseError(
                f"{data.rows_file}: contains {data.view}, but queries are trained on pairs of a query and its "
                "document; run `cse prepare` with data.view: pairs, or documents and data.pairs: stand_ins"
            )
    pairs = pairs_of([(data.train, data.made_from == STAND_INS) for data in sources], sources[0].documents)
    if len(pairs.documents) < 2:
        raise CseError(f"{sources[0].rows_file}: one document is no collection; prepare two or more")
    if most is not None and len(pairs.queries) > most:
        pairs = pairs.only(np.linspace(0, len(pairs.queries) - 1, most, dtype=np.int64))
    click.echo(f"{len(pairs.queries):,} queries against {len(pairs.documents):,} documents", err=True)
    bare = encoder.side_of(None)
    vectors = UnitVectors(bare, None, sys.stderr.isatty())
    documents = vectors.documents(pairs.documents, role_for("document", bare.texts))
    (queries,) = vectors.of(pairs.queries, role=role_for("query", bare.texts))
    return TaughtCollection(pairs, documents, queries, teach(pairs, queries, documents))
