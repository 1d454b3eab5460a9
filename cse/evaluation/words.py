"""Search by words: BM25 (Robertson and Zaragoza 2009) over a collection."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Words:
    """BM25 over a collection (bm25s, its defaults), words stemmed and without English stop words.

    Args:
        documents: the texts.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        from Stemmer import Stemmer

        with _without("jax"):  # which takes three quarters of a GPU's memory as soon as bm25s imports it
            import bm25s

        self._stemmer, self._tokenize = Stemmer("english"), bm25s.tokenize
        self._count = len(documents)
        self._index = bm25s.BM25()
        self._empty = not any(self._tokens(documents))
        if not self._empty:
            self._index.index(self._tokens(documents), show_progress=False)

    def scores(self, queries: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of all documents, float32 ``(N,)``, for each query; 0 without a common word."""
        for tokens in self._tokens(queries):
            nothing = self._empty or not tokens
            yield np.zeros(self._count, np.float32) if nothing else self._index.get_scores(tokens)

    def _tokens(self, texts: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = self._tokenize(
            list(texts), stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False
        )
        return found


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
