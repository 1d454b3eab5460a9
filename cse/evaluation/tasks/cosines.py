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
    product alone may round equal columns differently. Documents may lie in a file: they are read, not copied.

    Args:
        query_QD: unit vectors ``(q, d)``, float32.
        document_ND: unit vectors ``(n, d)``, float32.
        cells: maximum cells of a block; a block has at least one query.
    """
    later, first = _repeated(np.ascontiguousarray(document_ND))
    step = max(1, cells // len(document_ND))
    for start in range(0, len(query_QD), step):
        block_BN = query_QD[start : start + step] @ document_ND.T
        block_BN[:, later] = block_BN[:, first]
        yield start, block_BN


def _repeated(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of rows that equal an earlier one, and of the first that equals each."""
    bits = rows.view(np.uint32 if rows.strides[0] % 8 else np.uint64)
    random = np.random.default_rng(0).integers(1, 1 << 63, bits.shape[1], np.uint64) | np.uint64(1)
    step = max(1, _CELLS // bits.shape[1])
    with np.errstate(over="ignore"):
        keys = [(bits[start : start + step] * random).sum(axis=1) for start in range(0, len(rows), step)]
    _, first, which = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    later = np.flatnonzero(first[which] != np.arange(len(rows)))
    first = first[which][later]
    pairs = zip(later, first, strict=True)  # two keys are equal by chance once in many years
    same = np.array([np.array_equal(rows[one], rows[other]) for one, other in pairs], bool)
    return later[same], first[same]


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
