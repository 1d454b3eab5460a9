"""Limit each trial's share of the memory of its machine or container: a worker that exceeds it exits.

Otherwise the kernel would kill the largest process, or Ray's monitor a worker, which would end the sweep. So each
worker monitors itself: when it exceeds its share, it leaves a note and exits, Ray Tune restarts it, and the next
attempt holds half as many sentences in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from ray._common.utils import get_system_memory  # that of the container, if it has a limit; psutil knows only the host

from cse.process import watching

GROWN = "grown.txt"  # number of sentences held when a worker exceeded its share
SHARE = 0.9  # of a machine's memory, for all its trials together
_SECONDS = 0.1  # between checks
_KILLED = 137


@contextmanager
def kept_to_share(note: Path, trials: int, sentences: int, attempt: Path) -> Iterator[None]:
    """Exit this process if it exceeds its share of the machine's memory inside the block.

    Args:
        note: file to write the number of sentences to before exiting.
        trials: trials that share the machine.
        sentences: sentences held in memory at once.
        attempt: file to remove then, since this worker is not lost for an unknown reason.
    """
    free_memory()  # left over from this worker's last trial
    most = int(SHARE * get_system_memory()) // trials
    own = psutil.Process()

    def look() -> None:
        if own.memory_info().rss > most:
            note.write_text(str(sentences), encoding="utf-8")
            attempt.unlink(missing_ok=True)
            os._exit(_KILLED)

    with watching(look, _SECONDS):
        yield


def free_memory() -> None:
    """Free the unused memory of Python, the C library and the GPU."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no malloc_trim
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
