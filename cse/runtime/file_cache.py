"""Files in memory: read again only when they change, and the longest unused forgotten beyond a number of bytes."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

# A time stamp may be this coarse (network file systems count whole seconds): what changed so recently may change again
# without a new stamp.
COARSE_NS = 2_500_000_000
Stamp = tuple[int, int, int, int, int]
Value = TypeVar("Value")


class Look(Protocol):
    """Asks a question about a file by its name."""

    def __call__(self, name: str, question: Callable[[], Value], /) -> Value:
        """Return the answer; a server's raises ``TimeoutError`` where the file hangs."""


def look_directly(name: str, question: Callable[[], Value], /) -> Value:
    """Ask, however long it takes."""
    return question()


def stamp_of(status: os.stat_result, now: int) -> Stamp:
    """Return what tells a file from its other versions; of one that changed just now, no later stamp is the same.

    Args:
        now: nanoseconds since the epoch, from before the status was asked for.
    """
    young = now if now - status.st_ctime_ns <= COARSE_NS else 0
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size, young


class _Entry(NamedTuple, Generic[Value]):
    stamp: Stamp
    value: Value
    size: int


class FileCache(Generic[Value]):
    """What was read of files, of ``limit`` bytes together; the value read last stays, be it larger.

    Args:
        same: whether a value read again is the one that is there, which then stays.
    """

    def __init__(
        self,
        read: Callable[[Path], Value],
        size: Callable[[Value], int],
        limit: int,
        same: Callable[[Value, Value], bool],
    ) -> None:
        self._read, self._size, self._limit, self._same = read, size, limit, same
        self._entries: OrderedDict[str, _Entry[Value]] = OrderedDict()
        self.bytes = 0  # of all values
        self._lock = threading.Lock()

    def get(self, path: str) -> Value:
        """Return the value of a file as it is now; costs one ``stat`` of the file while it does not change.

        Several threads may read one file at once; they all get the same value.
        """
        now = time.time_ns()
        try:
            stamp = stamp_of(os.stat(path), now)  # noqa: PTH116 - of a string: half the time
            with self._lock:
                entry = self._entries.get(path)
                if entry is not None and entry.stamp == stamp:
                    self._entries.move_to_end(path)
                    return entry.value
            value = self._read(Path(path))  # if the file changes meanwhile, the next call sees another stamp
        except FileNotFoundError:
            with self._lock:
                self._forget(path)
            raise
        with self._lock:
            old = self._forget(path)
            value = old.value if old is not None and self._same(old.value, value) else value
            self._entries[path] = entry = _Entry(stamp, value, self._size(value))
            self.bytes += entry.size
            while self.bytes > self._limit and len(self._entries) > 1:
                self._forget(next(iter(self._entries)))
        return value

    def _forget(self, path: str) -> _Entry[Value] | None:
        entry = self._entries.pop(path, None)
        self.bytes -= 0 if entry is None else entry.size
        return entry
