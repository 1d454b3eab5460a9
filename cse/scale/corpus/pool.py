"""Pieces shared out to a pool of actors by Ray Data, on this machine or on a cluster that ``RAY_ADDRESS`` names."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cse.errors import CseError, describe_os_error
from cse.runtime.providers import usable_cpus
from cse.scale.corpus.plan import Piece
from cse.scale.corpus.sources import Source
from cse.scale.corpus.worker import Job, Worker

ADDRESS = "RAY_ADDRESS"
_FOLDER = "cse-ray-"  # sockets lie in it, whose paths may have 107 characters
_STORE_BYTES = 100 * 1024 * 1024  # only names of pieces and counts pass through it
_WINDOW = 1024  # pieces that Ray knows of at once, so that its memory does not grow with the corpus
_RESTARTS = 8
_LOST = "a worker ended by itself more than {} times in a row: too little memory? take fewer --workers"


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
        rows, error = 0, self.error
        if not error:
            piece, source = batch["item"][0]
            try:
                rows = self.worker.make_shard(piece, source)
            except (CseError, OSError) as failure:
                error = _one_line(failure)
        return {"rows": np.array([rows]), "error": np.array([error])}


def make_shards(job: Job, todo: Iterator[tuple[Piece, Source]], workers: int, gpus: float) -> Iterator[int]:
    """Make the shards of all pieces and yield the rows of each as it is saved, in any order.

    Ray must run, see ``running_ray``. An actor that dies is started again and its piece done again.

    Args:
        job: what to do.
        todo: pieces with their files.
        workers: actors.
        gpus: share of a GPU that each takes; 0: one CPU core each.

    Raises:
        CseError: what the first actor that failed has to say.
    """
    import ray
    from ray.data import ActorPoolStrategy
    from ray.exceptions import RayError

    while window := list(islice(todo, max(_WINDOW, 64 * workers))):
        actors = min(workers, len(window))
        shards = ray.data.from_items(window, override_num_blocks=len(window)).map_batches(
            PieceActor,
            batch_size=1,
            compute=ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=2),
            fn_constructor_args=(job,),
            num_cpus=1,
            num_gpus=gpus or None,
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
        )
        try:
            for answer in shards.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
                for rows, error in zip(answer["rows"], answer["error"], strict=True):
                    if error:
                        raise CseError(str(error))
                    yield int(rows)
        except RayError as error:
            if isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.OutOfMemoryError):
                raise CseError(_LOST.format(_RESTARTS)) from error
            raise CseError(f"Ray: {_one_line(error)[:300]}") from error


@contextmanager
def running_ray(workers: int, gpus: float) -> Iterator[None]:
    """Join the cluster that ``RAY_ADDRESS`` names, or start Ray here for as long as the block lasts.

    Args:
        workers: actors that will be asked for.
        gpus: share of a GPU that each takes.

    Raises:
        CseError: a cluster that does not answer, or one with too few cores or GPUs.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of its next version
    quiet = logging.ERROR
    import ray

    folder = None
    try:
        if os.environ.get(ADDRESS):
            _join(ray, quiet)
        else:
            folder = _own_folder()
            ray.init(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=quiet,
                object_store_memory=_STORE_BYTES,
                _temp_dir=str(folder),
            )
        _check_resources(ray.cluster_resources(), workers, gpus)
        _silence(ray, quiet)
        yield
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def check_workers(workers: int) -> None:
    """Refuse more workers than this machine has cores, where it is to run them.

    Raises:
        CseError: says how many there are.
    """
    cpus = usable_cpus()
    if not os.environ.get(ADDRESS) and workers > cpus:
        raise CseError(f"--workers {workers}: this machine has {cpus} usable cores; give {cpus} or fewer")


def _join(ray: Any, quiet: int) -> None:
    address = os.environ[ADDRESS]
    try:
        ray.init(address=address, log_to_driver=False, logging_level=quiet)
    except Exception as error:  # ConnectionError, ValueError, RuntimeError, by what is wrong with it
        raise CseError(f"{ADDRESS}={address}: no Ray cluster answers ({_one_line(error)[:200]}); start or unset it") from None


def _check_resources(there: dict[str, float], workers: int, gpus: float) -> None:
    if workers > there.get("CPU", 0):
        raise CseError(f"--workers {workers}: the cluster has {there.get('CPU', 0):.0f} cores; give as many or fewer")
    if workers * gpus > there.get("GPU", 0) + 1e-6:
        raise CseError(f"--workers {workers}: each takes {gpus:g} GPU, Ray sees {there.get('GPU', 0):g}; give fewer")


def _silence(ray: Any, quiet: int) -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    # a crash while an actor starts is worth another try too
    context.max_consecutive_actor_init_deaths = _RESTARTS
    # a piece on a slow machine may take long
    context.execution_no_progress_timeout_s = -1
    logging.getLogger("ray").setLevel(quiet)
    # Ray Data sets its logger up with the first data set, and then writes to a file too
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")
    logging.getLogger("ray.data").setLevel(quiet)


def _own_folder() -> Path:
    """Make a folder for Ray's sockets and logs, and remove those of killed runs."""
    base = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())  # noqa: S108 - short on purpose
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


def _one_line(error: BaseException) -> str:
    text = describe_os_error(error) if isinstance(error, OSError) else str(error)
    return " ".join(text.split())
