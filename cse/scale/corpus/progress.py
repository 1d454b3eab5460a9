"""Report rows done, rows per second and time left: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_SECONDS = 10.0


class CorpusProgress:
    """Counts rows; the clock starts with the ``with`` block."""

    def __init__(self, total: int, done: int, stream: TextIO) -> None:
        self.total, self.done, self.before = total, done, done
        self.stream = stream
        self.began = self.said = time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> CorpusProgress:
        """Start the clock and the bar."""
        self.began = self.said = time.monotonic()
        if self.stream.isatty():
            from tqdm import tqdm

            self.bar = tqdm(
                total=self.total, initial=self.done, desc="embed", unit="row", unit_scale=True, file=self.stream,
                dynamic_ncols=True,
            )  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def add(self, rows: int) -> None:
        """Count more saved rows."""
        self.done += rows
        if self.bar is not None:
            self.bar.update(rows)
            return
        now = time.monotonic()
        if now - self.said >= _SECONDS:
            self.said = now
            rate = (self.done - self.before) / (now - self.began)
            left = duration((self.total - self.done) / rate)
            self.say(f"embed: {self.done:,} of {self.total:,} rows, {rate:,.0f} rows/s, {left} left")

    def say(self, line: str) -> None:
        """Report a line beside the bar."""
        if self.bar is not None:
            self.bar.write(line, file=self.stream)
            return
        self.stream.write(f"{line}\n")
        self.stream.flush()


def duration(seconds: float) -> str:
    """Return seconds in words: ``42 s``, ``5 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def own_stderr() -> Iterator[TextIO]:
    """Yield a copy of standard error, which stays open when its descriptor is redirected."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # an in-memory stream, or none
        yield sys.stderr
        return
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
        yield stream
