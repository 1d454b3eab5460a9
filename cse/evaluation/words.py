"""Search by words: BM25 (Robertson and Zaragoza 2009) over a collection of any size, some documents at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cse.runtime.mapped import mapped

DOCUMENTS = 16_384  # of a block
_CELLS = 1 << 22  # scores at a time: 16 MiB
_K1, _B = 1.5, 0.75  # as bm25s and most others have them


class Words:
    """BM25 over a collection in Lucene's form, words stemmed and without English stop words.

    A score is the sum over the words of a query of ``idf tf / (tf + k1 (1 - b + b length / mean length))`` with
    ``idf = ln(1 + (N - df + 0.5) / (df + 0.5))``. What a word adds to each document is computed once; of more than one
    block of documents it lies in files that are read through the page cache.

    Args:
        documents: the texts; any sequence, of which parts are read.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        from Stemmer import Stemmer

        with _without("jax"):  # which takes three quarters of a GPU's memory as soon as bm25s imports it
            import bm25s

        self._stemmer, self._tokenize = Stemmer("english"), bm25s.tokenize
        self._count = len(documents)
        self._numbers: dict[str, int] = {}
        counts = []
        for start in range(0, self._count, DOCUMENTS):
            block = self._counts(list(documents[start : start + DOCUMENTS]), grows=True)
            counts.append(block if self._count <= DOCUMENTS else _on_disk(block))
        width = len(self._numbers)
        holding = sum((np.bincount(block.indices, minlength=width) for block in counts), np.zeros(width))
        mean = sum(block.data.sum(dtype=np.float64) for block in counts) / max(self._count, 1)
        rarity = np.log1p((self._count - holding + 0.5) / (holding + 0.5))
        self._blocks = [_weights(block, rarity, mean) for block in counts]
        if self._count > DOCUMENTS:
            self._blocks = [_on_disk(block) for block in self._blocks]

    def scores(self, queries: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of all documents, float32 ``(N,)``, for each query; 0 without a common word."""
        counts = self.counts(queries)
        step = max(_CELLS // max(self._count, 1), 1)
        for start in range(0, len(queries), step):
            rows = counts[start : start + step]
            found = [self.block(rows, number) for number in range(len(self._blocks))]
            yield from np.hstack(found) if found else np.zeros((rows.shape[0], 0), np.float32)

    def counts(self, queries: Sequence[str]) -> Any:
        """Return how often each known word is in each query, a sparse matrix ``(q, words)`` for ``block``."""
        return self._counts(queries, grows=False)

    def block(self, counts: Any, number: int) -> NDArray[np.float32]:
        """Return the scores of the documents of a block, ``DOCUMENTS`` of them and fewer in the last one ``(q, b)``."""
        return np.asarray((counts @ self._blocks[number]).toarray(), np.float32)

    def _counts(self, texts: Sequence[str], *, grows: bool) -> Any:
        """Return how often each word is in each text, rows by text; new words get a number or are left out."""
        found = self._tokenize(
            list(texts), stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False
        )
        numbers = self._numbers
        if grows:
            for tokens in found:
                for token in tokens:
                    numbers.setdefault(token, len(numbers))
        columns = [[numbers[token] for token in tokens if token in numbers] for tokens in found]
        row = np.repeat(np.arange(len(found)), list(map(len, columns)))
        column = np.fromiter((number for some in columns for number in some), np.int64, len(row))
        ones = np.ones(len(row), np.float32)
        return sparse.csr_matrix((ones, (row, column)), (len(found), len(numbers)), np.float32)


def _weights(counts: Any, rarity: NDArray[np.float64], mean: float) -> Any:
    """Return what each word adds to the score of each document ``(words, b)``."""
    length = np.asarray(counts.sum(axis=1)).ravel()
    row = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    dampened = counts.data / (counts.data + _K1 * (1 - _B + _B * length[row] / mean))
    data = (rarity[counts.indices] * dampened).astype(np.float32)
    shape = (counts.shape[0], len(rarity))  # words that came later are in none of these
    return sparse.csr_matrix((data, counts.indices, counts.indptr), shape).T.tocsr()


def _on_disk(matrix: Any) -> Any:
    arrays = tuple(map(mapped, (matrix.data, matrix.indices, matrix.indptr)))
    return sparse.csr_matrix(arrays, matrix.shape, copy=False)


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Make a package's import fail inside the block, as where it is not installed."""
    modules: dict[str, Any] = sys.modules  # None stands for a package that cannot be imported
    was = modules.get(package)
    modules[package] = None
    try:
        yield
    finally:
        del modules[package]
        if was is not None:
            modules[package] = was
