"""The nearest domain of a text among thousands: the centres of all domains as a few matrices.

A domain's name decides in which matrix its centres lie, so a domain that comes, changes or goes builds one of them
again, from rows that are in memory. A matrix never changes: whoever compares texts with it may go on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError
from cse.runtime.domain import SUFFIX
from cse.runtime.file_cache import COARSE_NS, Look, Stamp, look_directly, stamp_of

_BLOCKS = 64


class _Block(NamedTuple):
    """Centres (r, d) of some domains: by name, the stamp of its file, its first row and the row behind its last; and
    whose each row is (r).
    """

    rows: dict[str, tuple[Stamp | None, int, int]]
    names: NDArray[np.object_]
    matrix: NDArray[np.float32]


class Centres:
    """Centres of the domains in a folder.

    Attributes:
        ask: looks at a file, see ``Look``; what hangs is left out, and looked at again.
    """

    def __init__(self, read: Callable[[Path], NDArray[np.float32] | None], width: int) -> None:
        self._read, self._width = read, width
        self.ask: Look = look_directly
        self._missed = False
        self._blocks = [self._block([])] * _BLOCKS
        self._stamp, self._looked = -1, -np.inf
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether any domain has centres."""
        return any(len(block.names) for block in self._blocks)

    def look(self, folder: Path, age: float = 0.0) -> None:
        """Read what is new or changed, unless somebody looked less than ``age`` seconds ago."""
        if time.monotonic() - self._looked < age:
            return
        with self._lock:
            begin, now = time.monotonic(), time.time_ns()
            if begin - self._looked < age:
                return
            stamp = folder.stat().st_mtime_ns
            if stamp != self._stamp:
                self._missed = False
                self._blocks = self._changed(folder, now)
                self._stamp = stamp if now - stamp > COARSE_NS and not self._missed else -1
            self._looked = begin

    def hold(self, found: Iterable[tuple[str, NDArray[np.float32] | None]]) -> None:
        """Take these centres by name, and no others."""
        self._blocks = [self._block([(name, None, rows) for name, rows in found if rows is not None])]

    def nearest(self, unit: NDArray[np.float32], without: Collection[str] = ()) -> list[str]:
        """Return the domain whose centre has the largest cosine with each of some vectors (n, d) of unit length.

        Args:
            without: domains to pass over; the name is empty where no other is left.
        """
        best, names = np.full(len(unit), -np.inf, np.float32), np.full(len(unit), "", object)
        for block in self._blocks:
            if not len(block.names):
                continue
            scores = unit @ block.matrix.T
            for first, end in (block.rows[name][1:] for name in block.rows.keys() & without):
                scores[:, first:end] = -np.inf
            place = scores.argmax(axis=1)
            found = np.take_along_axis(scores, place[:, None], axis=1)[:, 0]
            better = found > best
            best[better], names[better] = found[better], block.names[place[better]]
        return list(names)

    def _changed(self, folder: Path, now: int) -> list[_Block]:
        stamps: list[dict[str, Stamp]] = [{} for _ in self._blocks]
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                    name = entry.name.removesuffix(SUFFIX)
                    try:  # of all that hangs, only a link to elsewhere already does so here
                        status = self.ask(name, entry.stat) if entry.is_symlink() else entry.stat()
                        stamps[crc32(os.fsencode(name)) % _BLOCKS][name] = stamp_of(status, now)
                    except OSError as error:  # gone, or it is refused when it is asked for
                        self._missed |= isinstance(error, TimeoutError)
        return [
            old if {name: row[0] for name, row in old.rows.items()} == new else self._again(folder, old, new)
            for old, new in zip(self._blocks, stamps, strict=True)
        ]

    def _again(self, folder: Path, old: _Block, stamps: dict[str, Stamp]) -> _Block:
        found: list[tuple[str, Stamp | None, NDArray[np.float32] | None]] = []
        for name, stamp in sorted(stamps.items()):
            before, first, end = old.rows.get(name, (None, 0, 0))
            path = folder / f"{name}{SUFFIX}"
            try:
                rows = old.matrix[first:end] if before == stamp else self.ask(name, partial(self._read, path))
            except TimeoutError:
                self._missed = True
                continue
            except (CseError, OSError):  # it is refused when it is asked for
                rows = None
            found.append((name, stamp, rows))
        return self._block(found)

    def _block(self, found: Iterable[tuple[str, Stamp | None, NDArray[np.float32] | None]]) -> _Block:
        rows: dict[str, tuple[Stamp | None, int, int]] = {}
        names: list[str] = []
        parts = [np.empty((0, self._width), np.float32)]
        for name, stamp, own in found:
            count = 0 if own is None else len(own)
            rows[name] = stamp, len(names), len(names) + count
            names += [name] * count
            parts += [] if own is None else [own]
        return _Block(rows, np.array(names, object), np.concatenate(parts))
