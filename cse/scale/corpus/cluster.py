"""Start Ray for the workers of `cse embed`: how many, what each takes, and no output from Ray itself."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cse.errors import CseError
from cse.ray_session import ADDRESS, Crew, gpus_each, in_words, largest_crew, listed_machines, ray_session, with_more
from cse.runtime.providers import usable_cpus
from cse.stages.common import DEBUG_VARIABLE

_STORE_BYTES = 100 * 1024 * 1024  # the texts of a piece per worker; what does not fit goes to disk
_STDERR = 2


@contextmanager
def running_ray(workers: int | None, provider: str) -> Iterator[tuple[Any, Crew]]:
    """Join the cluster at ``RAY_ADDRESS``, or start Ray here, and yield it with what each worker takes.

    Args:
        workers: actors; None: one per core or GPU.
    """
    with _hushed(), ray_session(cpus=workers, store_bytes=_STORE_BYTES) as ray:
        yield ray, _crew(ray, workers, provider)


@contextmanager
def _hushed() -> Iterator[None]:
    """Discard Ray's standard error, which reports every actor that Ray itself stops as lost.

    To write inside the block, use a stream from ``own_stderr``. With ``CSE_DEBUG=1`` nothing is discarded.
    """
    if os.environ.get(DEBUG_VARIABLE):
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        kept = os.dup(_STDERR)
        os.dup2(nowhere.fileno(), _STDERR)  # Ray's C++ code writes there
        try:
            yield
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)


def check_workers(workers: int | None) -> None:
    """Refuse more workers than this machine has cores, before anything starts or is deleted.

    ``running_ray`` checks this for a cluster.
    """
    cores = usable_cpus()
    if workers and workers > cores and not os.environ.get(ADDRESS):
        raise CseError(f"--workers {workers}: this machine has {cores} usable cores; use {cores} or fewer")


def _crew(ray: Any, workers: int | None, provider: str) -> Crew:
    """Give each worker a CPU and, with CUDA, its share of the GPUs."""
    there, gpu = with_more(ray), provider == "cuda"
    if gpu and not gpus_each(there, 1):
        raise CseError("--provider cuda: Ray sees no GPU beside a CPU; use --provider cpu")
    crew = largest_crew(ray, workers, workers or sys.maxsize, gpu=gpu)
    if workers and crew.workers < workers:
        raise CseError(
            f"--workers {workers}: each takes {in_words(1, gpus_each(there, workers) if gpu else 0)} of one machine, "
            f"and Ray has {listed_machines(there)}; use {crew.workers} or fewer"
        )
    return crew._replace(cpus=1)
