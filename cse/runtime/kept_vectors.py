"""Vectors of a bare backbone that are kept, so that what trains, measures and indexes encodes each text once.

A backbone that nothing trains gives the same vector wherever it is used: to what is measured before and after, to a
query side as its documents, and to their index. A vector is found again by its token ids, by the backbone's weights and
by how it pools, whether torch or onnxruntime computed it: in float32 the two agree to the last digits. They lie in
files that are read through the page cache, not held in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEY = 16  # bytes
Embed = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]


@dataclass
class KeptVectors:
    """Files of vectors, one for each encoder, and the places of the vectors in them.

    Attributes:
        places: of the vectors in the file of an encoder, by their keys.
    """

    folder: Path
    adds: bool = True
    places: dict[Path, dict[bytes, int]] = field(default_factory=dict)

    def embed(
        self, of: str, width: int, ids: NDArray[np.int64], mask: NDArray[np.int64], embed: Embed
    ) -> NDArray[np.float32]:
        """Return the vectors of rows ``(b, width)``, not scaled; those that are not kept by ``embed``.

        Args:
            ids: token ids ``(b, l)``.
            mask: 1 for a token ``(b, l)``.
            embed: encodes rows ``(b, l)``.
        """
        path = self.folder / f"{hashlib.blake2b(of.encode(), digest_size=_KEY).hexdigest()}.kept"
        record = np.dtype([("key", f"V{_KEY}"), ("vector", np.float32, (width,))])
        if path not in self.places:
            self.places[path] = _places(path, record)
        places = self.places[path]
        keys = [
            hashlib.blake2b(row[real > 0].tobytes(), digest_size=_KEY).digest()
            for row, real in zip(ids, mask, strict=True)
        ]
        there = [row for row, key in enumerate(keys) if key in places]
        new = [row for row, key in enumerate(keys) if key not in places]
        vectors = np.empty((len(keys), width), np.float32)
        if there:
            vectors[there] = _records(path, record)["vector"][[places[keys[row]] for row in there]]
        if new:
            longest = int(mask[new].sum(axis=1).max())  # the longer rows may be those that are kept
            vectors[new] = embed(ids[new, :longest], mask[new, :longest])
            if self.adds:
                found = np.empty(len(new), record)
                found["key"], found["vector"] = np.array([keys[row] for row in new], record["key"]), vectors[new]
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as stream:
                    first = stream.tell() // record.itemsize
                    stream.write(found.tobytes())
                places |= {keys[row]: first + number for number, row in enumerate(new)}
        return vectors


def _records(path: Path, record: np.dtype[Any]) -> NDArray[Any]:
    """Return the records of a file as they lie there."""
    return np.memmap(path, record, "r")


def _places(path: Path, record: np.dtype[Any]) -> dict[bytes, int]:
    """Return the places of the vectors in a file; a record that a killed writer did not end is cut off."""
    size = path.stat().st_size if path.is_file() else 0
    if over := size % record.itemsize:
        with path.open("r+b") as stream:
            stream.truncate(size - over)
    if size < record.itemsize:
        return {}
    keys = np.ascontiguousarray(_records(path, record)["key"]).tobytes()
    return {keys[start : start + _KEY]: start // _KEY for start in range(0, len(keys), _KEY)}


_current: ContextVar[KeptVectors | None] = ContextVar("kept vectors", default=None)


def kept() -> KeptVectors | None:
    """Return the vectors that are kept at the moment; None outside ``keep_vectors``, and on other threads."""
    return _current.get()


@contextmanager
def keep_vectors(folder: Path | None, *, adds: bool = True) -> Iterator[None]:
    """Keep each vector that a bare backbone computes in the block, in files that the next such block reads.

    Args:
        adds: whether to keep new vectors; else those that are there are read.
    """
    token = _current.set(None if folder is None else KeptVectors(folder, adds))
    try:
        yield
    finally:
        _current.reset(token)
