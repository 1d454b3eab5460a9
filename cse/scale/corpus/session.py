"""Ray, started here for as long as a command lasts, or joined where ``RAY_ADDRESS`` names a cluster."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.errors import CseError, describe_os_error
from cse.runtime.providers import usable_cpus
from cse.stages.common import DEBUG_VARIABLE

ADDRESS = "RAY_ADDRESS"
TRIES = 5  # of an actor that dies while it starts
_FOLDER = "cse-ray-"  # sockets lie in it, whose paths may have 107 characters
_STORE_BYTES = 100 * 1024 * 1024  # only names of pieces and counts pass through it
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of its next version
    "RAY_DATA_LOG_LEVEL": "ERROR",
    "RAY_worker_niceness": "0",  # the actors are the command: no less urgent than what else the user runs
}
_STDERR = 2
_KNOCK_SECONDS = 10.0


@dataclass(frozen=True)
class Pool:
    """How many actors there are, and which share of a GPU each takes (0: none)."""

    workers: int
    gpus: float


@contextmanager
def running_ray(workers: int | None, provider: str) -> Iterator[Pool]:
    """Join the cluster that ``RAY_ADDRESS`` names, or start Ray here for as long as the block lasts.

    Args:
        workers: actors; None: one for each core, or for each GPU.
        provider: ``cpu`` or ``cuda``.

    Raises:
        CseError: a cluster that does not answer, or fewer cores or GPUs than workers.
    """
    address = os.environ.get(ADDRESS)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    with contextlib.ExitStack() as stack:
        stack.enter_context(_hushed())
        if address:
            stack.callback(ray.shutdown)
            _join(ray, address)
        else:
            folder = _own_folder()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(ray.shutdown)
            ray.init(
                address="local",
                num_cpus=workers or usable_cpus(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=_STORE_BYTES,
                _temp_dir=str(folder),
            )
        pool = _share_out(ray.cluster_resources(), workers, provider)
        _configure()
        yield pool


@contextmanager
def _hushed() -> Iterator[None]:
    """Drop what Ray writes to standard error: it reports every actor that it ends itself as lost.

    Who has something to say in the block needs a stream of its own, see ``own_stderr``. ``CSE_DEBUG=1`` drops nothing.
    """
    if os.environ.get(DEBUG_VARIABLE):
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        kept = os.dup(_STDERR)
        os.dup2(nowhere.fileno(), _STDERR)  # its C++ part writes there
        try:
            yield
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)


def check_workers(workers: int | None) -> None:
    """Refuse more workers than this machine has cores, before anything is started or removed.

    Raises:
        CseError: says how many there are; of a cluster only ``running_ray`` knows.
    """
    if not os.environ.get(ADDRESS):
        _check_cores(workers or 1, usable_cpus(), "this machine")


def _share_out(there: dict[str, float], workers: int | None, provider: str) -> Pool:
    """Give each worker a core and, where they are asked for, its share of the GPUs."""
    cores, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
    if provider == "cuda" and not gpus:
        raise CseError("--provider cuda: Ray sees no GPU; take --provider cpu")
    count = workers or (gpus if provider == "cuda" else cores)
    _check_cores(count, cores, "the cluster")
    if provider != "cuda":
        return Pool(count, 0.0)
    per_gpu = -(-count // gpus)
    return Pool(count, math.floor(10_000 / per_gpu) / 10_000)


def _check_cores(workers: int, cores: int, where: str) -> None:
    if workers > cores:
        raise CseError(f"--workers {workers}: {where} has {cores} usable cores; give {cores} or fewer")


def _join(ray: Any, address: str) -> None:
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # ConnectionError, ValueError, RuntimeError, by what is wrong with it
        why = one_line(error)[:200]
        raise CseError(f"{ADDRESS}={address}: no Ray cluster answers ({why}); start it, or unset {ADDRESS}") from None


def _knock(address: str) -> None:
    """Raise ``OSError`` where nothing listens: Ray itself would try for minutes and end the process."""
    host, colon, port = address.partition("://")[2].rpartition(":") if "://" in address else address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _configure() -> None:
    """Keep Ray Data quiet and patient."""
    import ray.data

    logging.getLogger("ray").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_consecutive_actor_init_deaths = TRIES
    context.execution_no_progress_timeout_s = -1  # a piece may take long


def _own_folder() -> Path:
    """Make a folder for Ray's sockets and logs, and remove those of killed runs."""
    base = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())  # short
    for left in base.glob(f"{_FOLDER}*"):
        pid = left.name.removeprefix(_FOLDER).partition("-")[0]
        if pid.isdecimal() and not _is_alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=base))


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line."""
    text = describe_os_error(error) if isinstance(error, OSError) else str(error)
    return " ".join(text.split())
