"""Vectors of a bare backbone that are kept, so that trainings and measures of one task encode each text once.

A backbone that nothing trains gives the same vector wherever it is used: to what is measured before and after, and to
a query side as its documents. A vector is found again by its token ids, by the backbone's content and by how it pools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cse.outputs import publish_file

_KEY = 16  # bytes
Embed = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]


@dataclass
class Kept:
    """Vectors by key.

    Attributes:
        path: file that holds them.
        vectors: before they are scaled, float32.
        new: how many are not in the file yet.
    """

    path: Path
    vectors: dict[bytes, NDArray[np.float32]] = field(default_factory=dict)
    new: int = 0

    def embed(
        self, of: str, ids_BL: NDArray[np.int64], mask_BL: NDArray[np.int64], embed: Embed
    ) -> NDArray[np.float32]:
        """Return the vectors of rows, those that are not kept by ``embed``.

        Args:
            of: what encodes, and how.
            ids_BL: token ids.
            mask_BL: 1 for a token.
            embed: encodes rows ``(b, L)``.
        """
        start = hashlib.blake2b(of.encode(), digest_size=_KEY)
        keys = []
        for ids, mask in zip(ids_BL, mask_BL, strict=True):
            key = start.copy()
            key.update(np.ascontiguousarray(ids[mask > 0]).tobytes())
            keys.append(key.digest())
        rows = [row for row, key in enumerate(keys) if key not in self.vectors]
        if rows:
            width = int(mask_BL[rows].sum(axis=1).max())  # the longer rows may be those that are kept
            for row, vector in zip(rows, embed(ids_BL[rows, :width], mask_BL[rows, :width]), strict=True):
                self.vectors[keys[row]] = vector
            self.new += len(rows)
        return np.stack([self.vectors[key] for key in keys])

    def save(self) -> None:
        """Write the file if there are new vectors."""
        if self.new:
            widths = {len(vector) for vector in self.vectors.values()}
            keys = {width: [key for key, each in self.vectors.items() if len(each) == width] for width in widths}
            arrays = {f"keys_{width}": np.frombuffer(b"".join(found), np.uint8) for width, found in keys.items()}
            arrays |= {f"vectors_{width}": np.stack([self.vectors[k] for k in found]) for width, found in keys.items()}
            with publish_file(self.path) as target, target.open("wb") as stream:
                np.savez(stream, **arrays)  # type: ignore[arg-type]
            self.new = 0


_current: ContextVar[Kept | None] = ContextVar("kept vectors", default=None)


def kept() -> Kept | None:
    """Return the vectors that are kept at the moment; None outside ``keep_vectors``."""
    return _current.get()


@contextmanager
def keep_vectors(path: Path) -> Iterator[None]:
    """Keep each vector that a bare backbone computes in the block, in a file that the next such block reads.

    A file that is not whole counts as none.
    """
    found = Kept(path)
    try:
        with np.load(path) as arrays:
            for name in (name for name in arrays if name.startswith("keys_")):
                vectors = arrays[name.replace("keys", "vectors")]
                keys = arrays[name].reshape(len(vectors), _KEY)
                found.vectors |= {key.tobytes(): vector for key, vector in zip(keys, vectors, strict=True)}
    except (OSError, ValueError, KeyError, BadZipFile):
        found.vectors = {}
    token = _current.set(found)
    try:
        yield
    finally:
        _current.reset(token)
