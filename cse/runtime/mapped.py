"""Arrays too large for memory: files without a name, read through the page cache, gone when nothing uses them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from cse.runtime.encode import unit_rows

TEXTS = 8192  # encoded at a time


def mapped(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with the same values that lies in a file."""
    found = empty(array.shape, array.dtype)
    found[...] = array
    return found


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return an array of zeros in a file; one without values lies in memory."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def mapped_unit_vectors(
    encode: Callable[[list[str]], NDArray[np.float32]], texts: Sequence[str], *, desc: str = "", progress: bool = False
) -> NDArray[np.float32]:
    """Return unit vectors ``(n, D)`` of one or more texts in a file; memory holds those of a few thousand.

    Args:
        encode: returns one vector per text.
    """
    found: NDArray[np.float32] | None = None
    with tqdm(total=len(texts), desc=desc, unit=" texts", disable=not progress, leave=False) as bar:
        for start in range(0, len(texts), TEXTS):
            part = list(texts[start : start + TEXTS])
            vectors = np.asarray(encode(part), np.float32)
            if found is None:
                found = empty((len(texts), vectors.shape[1]))
            found[start : start + len(part)] = unit_rows(vectors)
            bar.update(len(part))
    assert found is not None  # noqa: S101 - there are texts
    return found
