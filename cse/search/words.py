"""Search by words: BM25 (Robertson and Zaragoza 2009) over a collection of any size, some documents at a time."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from cse.runtime.kept_vectors import mapped

DOCUMENTS = 16_384  # of a block
_CELLS = 1 << 22  # scores at a time: 16 MiB
_K1, _B = 1.2, 0.75  # as Lucene and LanceDB have them
# scripts that write no blanks between words, and Korean, whose endings are part of the word
_DENSE = r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\p{Hangul}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"([{_DENSE}]+)|[[\p{{L}}\p{{M}}\p{{N}}]--[{_DENSE}]]+", regex.V1)
_ASCII = re.compile("[a-z0-9]+")  # the same, ten times as fast
# accents; vowels and hamza, which Arabic and Hebrew may leave out, and what stretches a word; marks that do not show
_ACCENTS = regex.compile(
    r"[\u0300-\u036f\u00ad\u0640\u200d\u2060\ufeff[\p{M}&&[\p{Arabic}\u0591-\u05c7\u064b-\u0655\u0670]]]", regex.V1
)
_SIGNS = regex.compile(r"[\u2100-\u214f&&\p{So}]", regex.V1)  # ™, №: words of their own, not letters of their neighbour
# what an apostrophe leaves, and two abbreviations: letters of no meaning, unlike the C or R of a program
_LEFT = re.compile(r"(?<=[^\W_])['\u2018\u2019](?:s|t|d|m|ll|re|ve)(?![a-z0-9_])|(?<![\w.])(?:e\.g|i\.e)(?=[.,])")
_SIGNED = re.compile(r"(?<![\w.])([a-z])(\+\+|#)(?=(\d)?)(?![a-z_+#])")  # C++, C# and F# are not C and F
_SPELLED = {"++": "plusplus", "#": "sharp"}
STOP = {
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
}  # fmt: skip


def tokens(text: str) -> list[str]:
    """Return the words of a text as both word searches know them.

    Letters and digits that stand together, in small letters without accents, as English stems, without English stop
    words; of Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese each character and each pair of neighbours.
    """
    if text.isascii():
        text = _LEFT.sub(" ", _spelled(text.lower()))
        return _stemmer().stemWords([word for word in _ASCII.findall(text) if word not in STOP])
    text = unicodedata.normalize("NFKD", _SIGNS.sub(r" \g<0> ", text))
    text = _LEFT.sub(" ", _spelled(_ACCENTS.sub("", text.casefold())))
    found: list[str] = []
    for match in _WORD.finditer(unicodedata.normalize("NFC", text)):
        if match[1]:
            found += match[1]
            found += map("".join, pairwise(match[1]))
        elif match[0] not in STOP:
            found.append(match[0])
    return _stemmer().stemWords(found)


def _spelled(text: str) -> str:
    if "++" not in text and "#" not in text:
        return text
    return _SIGNED.sub(lambda found: found[1] + _SPELLED[found[2]] + " " * bool(found[3]), text)


@functools.cache
def _stemmer() -> Any:
    from Stemmer import Stemmer

    return Stemmer("english")


class Words:
    """BM25 over a collection in Lucene's form, of ``tokens``.

    A score is the sum over the words of a query of ``idf tf (k1 + 1) / (tf + k1 (1 - b + b length / mean length))``
    with ``idf = ln(1 + (N - df + 0.5) / (df + 0.5))``; documents without words do not count. What a word adds to each
    document is computed once; of more than one block of documents it lies in files that are read through the page
    cache.

    Args:
        documents: the texts; any sequence, of which parts are read.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        self._count = len(documents)
        self._numbers: dict[str, int] = {}
        counts = []
        for start in range(0, self._count, DOCUMENTS):
            block = self._counts(list(documents[start : start + DOCUMENTS]), grows=True)
            counts.append(block if self._count <= DOCUMENTS else _on_disk(block))
        width = len(self._numbers)
        holding = sum((np.bincount(block.indices, minlength=width) for block in counts), np.zeros(width))
        worded = sum(np.count_nonzero(np.diff(block.indptr)) for block in counts)
        mean = sum(block.data.sum(dtype=np.float64) for block in counts) / max(worded, 1)
        rarity = np.log1p((worded - holding + 0.5) / (holding + 0.5))
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
        found = list(map(tokens, texts))
        numbers = self._numbers
        if grows:
            for token in chain.from_iterable(found):
                numbers.setdefault(token, len(numbers))
        columns = [[numbers[token] for token in each if token in numbers] for each in found]
        row = np.repeat(np.arange(len(found)), list(map(len, columns)))
        column = np.fromiter((number for some in columns for number in some), np.int64, len(row))
        ones = np.ones(len(row), np.float32)
        return _sparse((ones, (row, column)), (len(found), len(numbers)), np.float32)


def _weights(counts: Any, rarity: NDArray[np.float64], mean: float) -> Any:
    """Return what each word adds to the score of each document ``(words, b)``."""
    length = np.asarray(counts.sum(axis=1)).ravel()
    row = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    dampened = (_K1 + 1) * counts.data / (counts.data + _K1 * (1 - _B + _B * length[row] / mean))
    data = (rarity[counts.indices] * dampened).astype(np.float32)
    shape = (counts.shape[0], len(rarity))  # words that came later are in none of these
    return _sparse((data, counts.indices, counts.indptr), shape).T.tocsr()


def _sparse(*given: Any, **more: Any) -> Any:
    from scipy.sparse import csr_matrix  # slow to import, and a search of a table needs no matrix

    return csr_matrix(*given, **more)


def _on_disk(matrix: Any) -> Any:
    arrays = tuple(map(mapped, (matrix.data, matrix.indices, matrix.indptr)))
    return _sparse(arrays, matrix.shape, copy=False)
