"""Cosines of many rows with many others, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_CELLS = 1 << 24  # of a block: 64 MiB of float32


def cosine_blocks(
    query_QD: np.ndarray, document_ND: np.ndarray, cells: int = _CELLS
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first query of each block and its cosines with all documents, float32 ``(b, n)``.

    Never holds the whole ``(q, n)`` table. Equal documents have exactly equal cosines, so that ties are ties: a matrix
    product alone may round equal columns differently.

    Args:
        query_QD: unit vectors ``(q, d)``, float32.
        document_ND: unit vectors ``(n, d)``, float32.
        cells: maximum cells of a block; a block has at least one query.
    """
    rows = np.ascontiguousarray(document_ND)
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first, which_N = np.unique(keys, return_index=True, return_inverse=True)
    distinct = len(first) < len(rows)
    columns_DM = (rows[first] if distinct else rows).T
    step = max(1, cells // len(rows))
    for start in range(0, len(query_QD), step):
        block_BM = query_QD[start : start + step] @ columns_DM
        yield start, block_BM[:, which_N] if distinct else block_BM


def nearest_columns(cosine_N: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the ``count`` highest cosines, highest first; of equal ones, the earlier first."""
    if count < len(cosine_N):
        lowest = np.partition(cosine_N, -count)[-count]
        places = np.flatnonzero(cosine_N >= lowest)
    else:
        places = np.arange(len(cosine_N))
    return places[np.argsort(-cosine_N[places], kind="stable")][:count]


def average_precisions(relevant_BN: np.ndarray) -> np.ndarray:
    """Return the average precision of each ranking ``(b, n)`` of truth values, all of which it ranks; float64 ``(b,)``.

    ``AP = mean over the relevant places of (relevant ones up to there) / place``.
    """
    hits_BN = relevant_BN.cumsum(axis=1, dtype=np.float64)
    precision_BN = hits_BN / np.arange(1, relevant_BN.shape[1] + 1)
    return (precision_BN * relevant_BN).sum(axis=1) / relevant_BN.sum(axis=1)
