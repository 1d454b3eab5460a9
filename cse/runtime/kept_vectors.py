"""Vectors in files that are read through the page cache, not held in memory: those that are kept, and large arrays.

What trains, measures and indexes encodes each text once, if the vectors of the bare backbone are kept.
A backbone that nothing trains gives the same vector wherever it is used: to what is measured before and after, to a
query side as its documents, and to their index. An encoder that is given an object of this class (``Encoder.kept``,
``OnnxEncoder(kept=...)``) takes vectors from it, on any thread. A vector is found again by its token ids, by the
backbone's weights and by how it pools, whether torch or onnxruntime computed it: in float32 the two agree to the last
digits.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cse.runtime.encode import unit_rows

TEXTS = 8192  # encoded at a time
_KEY = 16  # bytes
Embed = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]


class KeptVectors:
    """Files of vectors in a folder, one for each encoder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[Path, dict[bytes, int]] = {}  # of the vectors in a file, by their keys
        self._lock = threading.Lock()

    def embed(
        self,
        of: str,
        width: int,
        ids: NDArray[np.int64],
        mask: NDArray[np.int64],
        embed: Embed,
        *,
        adds: bool = True,
    ) -> NDArray[np.float32]:
        """Return the vectors of rows ``(b, width)``, not scaled; those that are not kept by ``embed``.

        Args:
            of: the encoder.
            ids: token ids ``(b, l)``.
            mask: 1 for a token ``(b, l)``.
            embed: encodes rows ``(b, l)``.
            adds: whether to keep new vectors.
        """
        path = self.folder / f"{_key(of.encode()).hex()}.kept"
        record = np.dtype([("key", f"V{_KEY}"), ("vector", np.float32, (width,))])
        keys = [_key(row[real > 0].tobytes()) for row, real in zip(ids, mask, strict=True)]
        with self._lock:
            if path not in self._places:
                self._places[path] = _places(path, record)
            places = self._places[path]
            there = {row: places[key] for row, key in enumerate(keys) if key in places}
        new = [row for row in range(len(keys)) if row not in there]
        vectors = np.empty((len(keys), width), np.float32)
        if there:
            vectors[[*there]] = np.memmap(path, record, "r")["vector"][[*there.values()]]
        if new:
            longest = int(mask[new].sum(axis=1).max())  # the longer rows may be those that are kept
            vectors[new] = embed(ids[new, :longest], mask[new, :longest])
        if new and adds:
            made = np.empty(len(new), record)
            made["key"], made["vector"] = np.array([keys[row] for row in new], record["key"]), vectors[new]
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock, path.open("ab") as stream:
                first = stream.tell() // record.itemsize
                stream.write(made.tobytes())
                places.update({keys[row]: first + number for number, row in enumerate(new)})
        return vectors


def _key(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_KEY).digest()


def _places(path: Path, record: np.dtype[np.void]) -> dict[bytes, int]:
    """Return the places of the vectors in a file; a record that a killed writer did not end is cut off."""
    size = path.stat().st_size if path.is_file() else 0
    if over := size % record.itemsize:
        with path.open("r+b") as stream:
            stream.truncate(size - over)
    keys = np.memmap(path, record, "r")["key"].tobytes() if size >= record.itemsize else b""
    return {keys[start : start + _KEY]: start // _KEY for start in range(0, len(keys), _KEY)}


def mapped(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with the same values that lies in a file."""
    found = empty(array.shape, array.dtype)
    found[...] = array
    return found


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return an array of zeros in a file without a name, gone when nothing uses it; one without values is in memory."""
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
    from tqdm import tqdm

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
