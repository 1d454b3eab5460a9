"""The collection that queries are trained against: its documents' vectors, and how a teacher ranks them.

Rows are pairs of a query and its document; the distinct documents are the collection. Their vectors are the bare
backbone's and never change, so they are computed once. A teacher scores each query against all of them: by cosine
and, for words, by BM25 (Robertson and Zaragoza 2009). It costs no labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cse.data.store import texts_in
from cse.evaluation.words import Words
from cse.objectives.collection import NO_DOCUMENT
from cse.runtime.encode import unit_rows

_BLOCK = 4_000_000  # scores at a time
_LEAST_DEVIATION = 1e-6


class Encoding(Protocol):
    """What encodes texts in a role."""

    texts: dict[str, str]

    def encode(
        self, sentences: Sequence[str], *, normalize: bool = ..., show_progress_bar: bool = ..., role: str | None = ...
    ) -> NDArray[np.float32]:
        """Return one vector per text, ``(n, D)``."""
        ...


class Rescoring(Protocol):
    """A teacher that reads a query and a document together, see ``CrossEncoderTeacher``."""

    @property
    def documents(self) -> int:
        """How many documents of a query it scores."""
        ...

    @property
    def share(self) -> float:
        """Its share of the targets."""
        ...

    def scores(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        """Return the scores of some documents for each query ``(n, k)``."""
        ...


@dataclass(frozen=True)
class QueryPairs:
    """Queries and the documents that belong to them.

    Attributes:
        queries: text of each row ``(n,)``.
        documents: the distinct documents ``(N,)``.
        place: number of each row's document ``(n,)``, int64.
        stands_in: whether each row's query was taken from its document ``(n,)``, bool.
        source: number of each row's source ``(n,)``, int64.
    """

    queries: list[str]
    documents: list[str]
    place: NDArray[np.int64]
    stands_in: NDArray[np.bool_]
    source: NDArray[np.int64]

    def only(self, rows: NDArray[np.int64]) -> QueryPairs:
        """Return these rows over the same documents."""
        queries = [self.queries[row] for row in rows]
        return QueryPairs(queries, self.documents, self.place[rows], self.stands_in[rows], self.source[rows])

    def times(self, weights: Sequence[float]) -> NDArray[np.int64]:
        """Return how often each row comes in a pass, so that a source has ``weight`` rows for each of the first one.

        Args:
            weights: of each source but the first.
        """
        counts = np.bincount(self.source, minlength=len(weights) + 1)
        wanted = counts[0] * np.array([1.0, *weights]) / np.maximum(counts, 1)
        return np.maximum(wanted.round().astype(np.int64), 1)[self.source]


@dataclass(frozen=True)
class Targets:
    """What a teacher thinks of the documents, for each query.

    Attributes:
        place: numbers of the documents with a share ``(n, K)``, int64.
        share: their shares, which sum to 1 ``(n, K)``, float32.
        own: the document that is no candidate, ``NO_DOCUMENT`` for none ``(n,)``, int64.
    """

    place: NDArray[np.int64]
    share: NDArray[np.float32]
    own: NDArray[np.int64]


def pairs_of(sources: Sequence[tuple[pa.Table, bool]]) -> QueryPairs:
    """Return the pairs of several sources one after the other, over one collection.

    Args:
        sources: rows of view ``pairs``, and whether their queries stand in for real ones.
    """
    queries: list[str] = []
    number: dict[str, int] = {}
    place, stands_in, source = [], [], []
    for which, (rows, taken) in enumerate(sources):
        queries += texts_in(rows, "sent0")
        place += [number.setdefault(text, len(number)) for text in texts_in(rows, "sent1")]
        stands_in += [taken] * len(rows)
        source += [which] * len(rows)
    return QueryPairs(
        queries, list(number), np.array(place, np.int64), np.array(stands_in, bool), np.array(source, np.int64)
    )


def teach(
    pairs: QueryPairs,
    query_nD: NDArray[np.float32],
    document_ND: NDArray[np.float32],
    *,
    words: float,
    temperature: float,
    candidates: int,
    own_share: float,
    again: Rescoring | None = None,
) -> Targets:
    """Return the shares that a teacher gives to the documents, for each query.

    A score is the cosine plus ``words`` times BM25, each less its mean over the documents and divided by its standard
    deviation; a softmax over the best ``candidates`` makes shares of the scores.

    Args:
        pairs: queries and documents.
        query_nD: the teacher's unit vectors of the queries ``(n, D)``.
        document_ND: its unit vectors of the documents ``(N, D)``.
        words: weight of BM25; 0: none.
        temperature: of the softmax.
        candidates: how many documents get a share, at most.
        own_share: share of the own document of a query that stands in for no other; of one that does, it gets none.
        again: a second teacher, which scores the best documents of the first; a softmax of its scores, less their mean
            and divided by their standard deviation, is averaged with the first one's.
    """
    kept = min(candidates, len(pairs.documents) - (1 if len(pairs.documents) > 1 else 0))
    place = np.empty((len(pairs.queries), kept + 1), np.int64)
    share = np.zeros((len(pairs.queries), kept + 1), np.float32)
    lexical = Words(pairs.documents) if words else None
    step = max(_BLOCK // len(pairs.documents), 1)
    for start in range(0, len(pairs.queries), step):
        rows = slice(start, start + step)
        score_bN = _standardised(query_nD[rows] @ document_ND.T)
        if lexical is not None:
            score_bN += words * _standardised(np.stack(list(lexical.scores(pairs.queries[rows]))))
        score_bN /= temperature
        row = np.arange(len(score_bN))
        taken = row[pairs.stands_in[rows]]
        score_bN[taken, pairs.place[rows][taken]] = -np.inf
        best = np.argpartition(-score_bN, kept - 1, axis=1)[:, :kept]
        score_bK = np.take_along_axis(score_bN, best, axis=1)
        share_bK = _softmax(score_bK)
        if again is not None:
            order_bk = np.argsort(-score_bK, axis=1)[:, : again.documents]
            nearest = [[pairs.documents[each] for each in some] for some in np.take_along_axis(best, order_bk, axis=1)]
            second_bk = _softmax(_standardised(again.scores(pairs.queries[rows], nearest)) / temperature)
            share_bK *= 1 - again.share
            share_bK[row[:, None], order_bk] += again.share * second_bk
        given = np.where(pairs.stands_in[rows], 0.0, own_share).astype(np.float32)
        place[rows, :kept], share[rows, :kept] = best, share_bK * (1 - given)[:, None]
        place[rows, kept], share[rows, kept] = pairs.place[rows], given
    return Targets(place, share, np.where(pairs.stands_in, pairs.place, NO_DOCUMENT))


def _softmax(score_bK: NDArray[np.float32]) -> NDArray[np.float32]:
    share_bK = np.exp(score_bK - score_bK.max(axis=1, keepdims=True))
    return np.asarray(share_bK / share_bK.sum(axis=1, keepdims=True), np.float32)


def _standardised(score_bN: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = score_bN - score_bN.mean(axis=1, keepdims=True)
    return np.asarray(centred / (score_bN.std(axis=1, keepdims=True) + _LEAST_DEVIATION), np.float32)


def unit_vectors(encoder: Encoding, texts: Sequence[str], role: str | None, progress: bool) -> NDArray[np.float32]:
    """Return unit vectors ``(n, D)`` of texts, each distinct one encoded once."""
    distinct = list(dict.fromkeys(texts))
    vectors = unit_rows(encoder.encode(distinct, normalize=True, show_progress_bar=progress, role=role))
    number = {text: place for place, text in enumerate(distinct)}
    return vectors[[number[text] for text in texts]]
