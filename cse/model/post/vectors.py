"""Passes over many sentence vectors in blocks, so that a million of them are never copied at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError

# Below 1e-5 of the largest standard deviation there are only float32 rounding errors.
NO_VARIANCE = 1e-10
_BLOCK = 4096  # rows; 25 MB as float64 at width 768


def blocks(vectors: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Yield views of at most ``_BLOCK`` rows of ``(n, D)``."""
    for start in range(0, len(vectors), _BLOCK):
        yield vectors[start : start + _BLOCK]


def check_finite(vectors: NDArray[np.float32]) -> None:
    """Raise a CseError for the first row of ``(n, D)`` with a non-finite value."""
    start = 0
    for block in blocks(vectors):
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(bad):
            raise CseError(
                f"post.kind: the encoder's vector of sentence {start + bad[0]} (counted from 0) is not finite; "
                "check the encoder, or encode in float32"
            )
        start += len(block)


def mean_vector(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean ``(D,)`` of ``(n, D)``, summed in float64."""
    sum_D = np.zeros(vectors.shape[1])
    for block in blocks(vectors):
        sum_D += block.sum(axis=0, dtype=np.float64)
    return sum_D / max(len(vectors), 1)


def count_distinct(vectors: NDArray[np.float32], enough: int) -> int:
    """Count distinct rows of ``(n, D)``, stopping at ``enough``."""
    seen: set[bytes] = set()
    for block in blocks(vectors):
        for row in block:
            seen.add(row.tobytes())
            if len(seen) == enough:
                return enough
    return len(seen)
