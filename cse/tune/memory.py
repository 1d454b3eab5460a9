"""A trial's share of the machine's memory: a worker that takes more goes by itself.

Otherwise the kernel would end the largest process, or Ray's monitor a worker, in a way that ends the sweep. So each
worker watches itself: when it has grown beyond its share it leaves a note and goes, Ray Tune starts it again, and the
next attempt holds half as many sentences at once.
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

from cse.process import watching

GROWN = "grown.txt"  # sentences that were held at once when a worker outgrew its share
SHARE = 0.9  # of a machine's memory, for all its trials together
_SECONDS = 0.1  # between looks
_KILLED = 137


@contextmanager
def kept_to_share(note: Path, trials: int, sentences: int) -> Iterator[None]:
    """End this process when it takes more than its share of the machine's memory in the block.

    Args:
        note: file to leave then, with the number of sentences.
        trials: trials that share the machine.
        sentences: held in memory at once.
    """
    free_memory()  # what the last trial of this worker left
    most = int(SHARE * psutil.virtual_memory().total) // trials
    own = psutil.Process()

    def look() -> None:
        if own.memory_info().rss > most:
            note.write_text(str(sentences), encoding="utf-8")
            os._exit(_KILLED)

    with watching(look, _SECONDS):
        yield


def free_memory() -> None:
    """Give back what is not used: Python's, the C library's and the GPU's."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library keeps what it has
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
