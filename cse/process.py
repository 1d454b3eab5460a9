"""What a process needs beside its work: a lock against others, a folder of its own, signals, a thread that looks on."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from cse.errors import CseError


@contextmanager
def only_one(lock: Path, refusal: str) -> Iterator[None]:
    """Hold a lock in the block, which no second process may enter meanwhile.

    The lock is the kernel's: it ends with the process that holds it, however that dies, and a file that is left blocks
    nobody.

    Args:
        lock: file to lock, of this alone; its folder is made.
        refusal: what to say where another process holds it.

    Raises:
        CseError: with ``refusal``.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock)
    try:
        held.acquire(blocking=False)
    except Timeout:
        raise CseError(refusal) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # a file that another process has opened by now is none that it can lock
        held.release()


@contextmanager
def throwaway_folder(folder: Path, alike: str, refusal: str) -> Iterator[None]:
    """Keep a folder for the block alone, and remove it at the end; folders of killed processes are removed first.

    A folder is in use while the lock beside it, ``NAME.lock``, is held. Without a lock it is not ours to remove.

    Args:
        folder: the caller makes it, before the block or in it.
        alike: pattern for the names of such folders beside it.
        refusal: what to say where another process uses the folder.

    Raises:
        CseError: with ``refusal``.
    """
    for left in folder.parent.glob(f"{alike}.lock"):
        with suppress(CseError, OSError), only_one(left, "in use"):
            shutil.rmtree(left.with_suffix(""), ignore_errors=True)
    with only_one(folder.with_name(f"{folder.name}.lock"), refusal):
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def handling(handler: Callable[[int], object], *numbers: int) -> Iterator[None]:
    """Call ``handler`` with the number of any of these signals that arrives in the block.

    Only the main thread may set handlers; in any other thread signals stay as they are.
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
def watching(look: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call ``look`` every ``seconds`` from a second thread while the block runs."""
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
