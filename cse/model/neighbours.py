"""Pairs of plain sentences: those among each other's nearest, as the bare backbone sees them.

In text of one field such pairs mostly mean the same: of the training questions of banking77, 93 % of the pairs among
each other's five nearest (MiniLM) ask for the same intent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cse.errors import CseError
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.encode import best_places

CELLS = 1 << 24  # cosines held at once
_BATCH = 64  # texts


def neighbours_of(
    bare: SentenceEncoder, sentences: Sequence[str], nearest: int, *, progress: bool
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of distinct sentences that are among each other's ``nearest``; refuse where there are none."""
    numbers = mutual_neighbours(bare.encode(sentences, _BATCH, show_progress_bar=progress), nearest)
    if not len(numbers):
        raise CseError("mine.neighbours: no two sentences are among each other's nearest; raise it")
    return ((sentences[one], sentences[other]) for one, other in numbers.tolist())


def mutual_neighbours(vectors_TD: np.ndarray, nearest: int) -> np.ndarray:
    """Return the pairs of texts among each other's ``nearest``, int64 ``(P, 2)``, the earlier first, in order."""
    nearest = min(nearest, len(vectors_TD) - 1)
    if nearest < 1:
        return np.empty((0, 2), np.int64)
    vectors_TD = np.ascontiguousarray(vectors_TD)
    found_TK = np.empty((len(vectors_TD), nearest), np.int64)
    size = max(CELLS // len(vectors_TD), 1)
    for start in range(0, len(vectors_TD), size):
        for row, cosines_T in enumerate(vectors_TD[start : start + size] @ vectors_TD.T, start=start):
            cosines_T[row] = -np.inf
            found_TK[row] = best_places(cosines_T, nearest)
    pairs = np.stack([np.arange(len(vectors_TD)).repeat(nearest), found_TK.ravel()], axis=1)
    distinct, times = np.unique(np.sort(pairs, axis=1), axis=0, return_counts=True)
    return distinct[times == 2]
