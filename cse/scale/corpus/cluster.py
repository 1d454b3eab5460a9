"""Start Ray for a pool of encoders: number of actors, resources of each, and no output from Ray itself."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cse.errors import CseError
from cse.runtime.providers import usable_cpus
from cse.scale.session import ADDRESS, ray_session
from cse.stages.common import DEBUG_VARIABLE

TRIES = 5  # for an actor that dies while it starts
_STORE_BYTES = 100 * 1024 * 1024  # only piece names and counts pass through it
_ENVIRONMENT = {
    "RAY_DATA_LOG_LEVEL": "ERROR",
}
_STDERR = 2


@dataclass(frozen=True)
class Pool:
    """How many actors, and what share of a GPU each takes (0: none)."""

    workers: int
    gpus: float


@contextmanager
def running_ray(workers: int | None, provider: str) -> Iterator[Pool]:
    """Join the cluster at ``RAY_ADDRESS``, or start Ray here for the duration of the block.

    Args:
        workers: actors; None: one per core or GPU.
        provider: ``cpu`` or ``cuda``.

    Raises:
        CseError: the cluster does not answer, or has too few cores or GPUs.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with _hushed(), ray_session(cpus=workers, store_bytes=_STORE_BYTES) as ray:
        pool = _share_out(ray.cluster_resources(), workers, provider)
        _configure()
        yield pool


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
    if not os.environ.get(ADDRESS):
        _check_cores(workers or 1, usable_cpus(), "this machine")


def _share_out(there: dict[str, float], workers: int | None, provider: str) -> Pool:
    """Give each worker a core and, with CUDA, its share of the GPUs."""
    cores, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
    if provider == "cuda" and not gpus:
        raise CseError("--provider cuda: Ray sees no GPU; use --provider cpu")
    count = workers or (gpus if provider == "cuda" else cores)
    _check_cores(count, cores, "the cluster")
    if provider != "cuda":
        return Pool(count, 0.0)
    per_gpu = -(-count // gpus)
    return Pool(count, math.floor(10_000 / per_gpu) / 10_000)


def _check_cores(workers: int, cores: int, where: str) -> None:
    if workers > cores:
        raise CseError(f"--workers {workers}: {where} has {cores} usable cores; use {cores} or fewer")


def _configure() -> None:
    """Keep Ray Data quiet and patient."""
    import ray.data

    logging.getLogger("ray").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_consecutive_actor_init_deaths = TRIES
    context.execution_no_progress_timeout_s = -1  # a piece may take a long time
