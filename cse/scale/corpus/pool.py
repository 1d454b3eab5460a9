"""Pieces shared out to a pool of actors by Ray Data, on this machine or on a cluster that ``RAY_ADDRESS`` names."""

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
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cse.errors import CseError, describe_os_error
from cse.runtime.providers import usable_cpus
from cse.scale.corpus.plan import Piece
from cse.scale.corpus.sources import Source
from cse.scale.corpus.worker import Job, Made, Worker
from cse.stages.common import DEBUG_VARIABLE

ADDRESS = "RAY_ADDRESS"
_FOLDER = "cse-ray-"  # sockets lie in it, whose paths may have 107 characters
_STORE_BYTES = 100 * 1024 * 1024  # only names of pieces and counts pass through it
_WINDOW = 1024  # pieces that Ray knows of at once, so that its memory does not grow with the corpus
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of its next version
    "RAY_DATA_LOG_LEVEL": "ERROR",
    "RAY_worker_niceness": "0",  # the actors are the command: no less urgent than what else the user runs
}
_STDERR = 2
_KNOCK_SECONDS = 10.0
_TRIES = 5  # of a piece whose actor dies, and of an actor that dies while it starts


class PieceActor:
    """A ``Worker`` as an actor of Ray Data: a row names a piece, the answer says what became of it.

    Errors of the user's come back as text: an exception would arrive as pages.
    """

    def __init__(self, job: Job) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores belong to the other actors
        self.error = ""
        try:
            self.worker = Worker(job)
        except (CseError, OSError) as error:
            self.error = _one_line(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Make the shards of a batch (of one piece)."""
        rows, cut, error = 0, 0, self.error
        if not error:
            piece, source = _from_row(batch)
            try:
                self._count_tries(piece, source)
                rows, cut = self.worker.make_shard(piece, source)
            except (CseError, OSError) as failure:
                error = _one_line(failure)
        return {"rows": np.array([rows]), "cut": np.array([cut]), "error": np.array([error])}

    def _count_tries(self, piece: Piece, source: Source) -> None:
        """Refuse a piece that ended several processes: Ray alone would start them for ever."""
        if self.worker.folder.count_try(piece.shard) > _TRIES:
            raise CseError(
                f"{source.shown}:{piece.line}: the process that embeds the {piece.rows} rows from here ended by itself "
                f"{_TRIES} times (out of memory?); take fewer --workers, or smaller --shard-rows"
            )


@dataclass(frozen=True)
class Pool:
    """How many actors there are, and which share of a GPU each takes (0: none)."""

    workers: int
    gpus: float


def make_shards(job: Job, todo: Iterator[tuple[Piece, Source]], pool: Pool) -> Iterator[Made]:
    """Make the shards of all pieces and yield what became of each as it is saved, in any order.

    Ray must run, see ``running_ray``. An actor that dies is started again and its piece done again.

    Args:
        job: what to do.
        todo: pieces with their files.
        pool: who does it.

    Raises:
        CseError: what the first actor that failed has to say.
    """
    import ray
    from ray.data import ActorPoolStrategy
    from ray.exceptions import RayError

    while window := list(islice(todo, max(_WINDOW, 64 * pool.workers))):
        actors = min(pool.workers, len(window))
        rows = [_to_row(piece, source) for piece, source in window]
        shards = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            PieceActor,
            batch_size=1,
            compute=ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=2),
            fn_constructor_args=(job,),
            num_cpus=1,
            num_gpus=pool.gpus or None,
        )
        try:
            for answer in shards.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
                for made, cut, error in zip(answer["rows"], answer["cut"], answer["error"], strict=True):
                    if error:
                        raise CseError(str(error))
                    yield Made(int(made), int(cut))
        except RayError as error:
            raise CseError(f"Ray gave up: {_one_line(error)[:300]}; CSE_DEBUG=1 shows all of it") from error


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
        why = _one_line(error)[:200]
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
    context.max_consecutive_actor_init_deaths = _TRIES
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


def _to_row(piece: Piece, source: Source) -> dict[str, Any]:
    """Return a piece and where to read it as a row of plain values, which Arrow knows."""
    return {**asdict(piece), "url": source.url, "shown": source.shown}


def _from_row(batch: dict[str, Any]) -> tuple[Piece, Source]:
    """Return the piece of a batch of one row."""
    values = {name: column[0] for name, column in batch.items()}
    url, shown = str(values.pop("url")), str(values.pop("shown"))
    return Piece(**{name: int(value) for name, value in values.items()}), Source(url, "", shown, None, "")


def _one_line(error: BaseException) -> str:
    text = describe_os_error(error) if isinstance(error, OSError) else str(error)
    return " ".join(text.split())
