"""Exclusive locks, throwaway folders, signal handlers and watcher threads."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from cse.errors import CseError


@contextmanager
def only_one(lock: Path, refusal: str, wait: float = 0.0) -> Iterator[None]:
    """Hold an exclusive lock while the block runs.

    The kernel releases the lock when the process ends, however it dies; a leftover file blocks nobody.

    Args:
        lock: file to lock, used for nothing else; its folder is created.
        wait: seconds to wait for it; below 0: as long as it takes.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock)
    try:
        held.acquire(timeout=wait, poll_interval=0.01)
    except Timeout:
        raise CseError(refusal) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # filelock never locks an unlinked file
        held.release()


@contextmanager
def throwaway_folder(folder: Path, alike: str, refusal: str) -> Iterator[None]:
    """Reserve a folder while the block runs and remove it at the end; first remove folders left by killed processes.

    A folder is in use while the lock next to it, ``NAME.lock``, is held. A folder without a lock file is never touched.

    Args:
        folder: made if it is not there.
        alike: glob pattern for such folders in the same place.
    """
    for left in folder.parent.glob(f"{alike}.lock"):
        with suppress(CseError, OSError), only_one(left, "in use"):
            shutil.rmtree(left.with_suffix(""), ignore_errors=True)
    # another process that starts at the same moment may hold the new lock to see whether anybody does
    with only_one(folder.with_name(f"{folder.name}.lock"), refusal, wait=2.0):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def handling(handler: Callable[[int], object], *numbers: int) -> Iterator[None]:
    """Call ``handler`` with the signal number when one of these signals arrives while the block runs.

    Only the main thread can set handlers in Python; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, _: handler(number)) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@contextmanager
def watching(look: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call ``look`` every ``seconds`` from another thread while the block runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(seconds):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
