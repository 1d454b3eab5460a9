"""Launcher of stage ``train`` that runs the training loop on several workers with Ray Train.

All workers open the same training, run the same loop and share each batch. The state is saved in the run's folder, as
with one worker. If a worker is lost, Ray Train restarts with as many workers as are available, and they resume from
the saved state.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from cse.errors import CseError, describe_os_error
from cse.process import watching
from cse.scale.machines import (
    WAIT_SECONDS,
    Machine,
    cpus_each,
    free_in_words,
    in_words,
    listed_machines,
    places,
    with_more,
)
from cse.scale.session import ray_session
from cse.settings import Settings
from cse.stages.training import Training, open_training
from cse.stages.watching import watchers
from cse.training.group import PeerLost, ProcessGroup
from cse.training.observers import Observers
from cse.training.state import RunState

MOST_LOSSES = 3  # lost workers before a run gives up
PROGRESS = "progress.log"
_LOST = "a worker was lost; the others start again from the saved state"
_FAILED, _TRACE = "failed.txt", "trace.txt"  # message and traceback of the first worker error


def train_on_workers(training: Training) -> RunState:
    """Train on ``train.workers`` workers and leave the best weights in the encoder.

    Raises:
        CseError: not all workers find a place, a worker failed, or too many workers were lost.
    """
    wanted = training.settings.train.workers
    folder = training.folder.path
    for name in (_FAILED, _TRACE):
        (folder / name).unlink(missing_ok=True)
    training.tables()  # workers memory-map it
    with ray_session() as ray:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        gpus = training.device.type == "cuda"
        each = _share(with_more(ray), wanted, gpus=gpus)
        trainer = TorchTrainer(
            _work,
            train_loop_config={
                "settings": training.settings.model_dump(mode="json"),
                "prepared": str(training.prepared.resolve()),
                "mined": str(training.mined.resolve()),
                "corrupted": str(training.corrupted.resolve()),
                "folder": str(folder.resolve()),
                "tokens": str(training.tokens.resolve()) if training.tokens else None,
            },
            scaling_config=ScalingConfig(
                num_workers=(1, wanted),  # at least 1
                use_gpu=gpus,
                resources_per_worker=each,
            ),
            run_config=RunConfig(
                name=folder.name,
                storage_path=str((folder / "ray").resolve()),
                failure_config=FailureConfig(max_failures=MOST_LOSSES),
                callbacks=[_no_second_attempt(str(folder.resolve()))],
            ),
        )

        def waits() -> str:
            taken = in_words(each["CPU"], each.get("GPU", 0))
            return f"train.workers: no worker runs; each waits for {taken} of one machine; {free_in_words(ray)}"

        with _followed(folder / PROGRESS, waits):
            try:
                trainer.fit()
            except Exception as error:
                own = folder / _FAILED
                raise CseError(own.read_text(encoding="utf-8") if own.is_file() else _reason(error)) from None
    shutil.rmtree(folder / "ray", ignore_errors=True)
    return training.take_over()


def _work(config: dict[str, Any]) -> None:
    """Run one worker."""
    from ray.train import get_context
    from ray.train.torch import get_device

    folder = Path(config["folder"])
    settings = Settings.model_validate(config["settings"])
    tokens = Path(config["tokens"]) if config["tokens"] else None
    with _told(folder, get_context().get_world_rank()):
        training = open_training(
            settings,
            prepared=Path(config["prepared"]),
            mined=Path(config["mined"]),
            corrupted=Path(config["corrupted"]),
            scratch=folder,
            folder=folder,
            tokens=tokens,
        )
        group = ProcessGroup(get_device())
        with (folder / PROGRESS).open("a", encoding="utf-8", buffering=1) as log:
            observers = Observers([])
            if group.rank == 0:
                log.write(f"workers that share each batch: {group.size}\n")
                observers = watchers(training, folder / "tensorboard", log)
            replace(training, device=get_device()).run(observers, group)


@contextmanager
def _told(folder: Path, rank: int) -> Iterator[None]:
    """Record and re-raise an error of this worker, since a retry would hit it again.

    The error ends the worker, and Ray Train then stops the others. Errors caused by the loss of another worker are not
    recorded.
    """
    try:
        yield
    except PeerLost:
        raise
    except Exception as error:
        with suppress(FileExistsError), (folder / _FAILED).open("x", encoding="utf-8") as stream:  # first error wins
            (folder / _TRACE).write_text(traceback.format_exc(), encoding="utf-8")
            stream.write(_words(error, rank, folder / _TRACE))
        raise


def _words(error: Exception, rank: int, trace: Path) -> str:
    if isinstance(error, CseError):
        return str(error)
    if isinstance(error, OSError):
        return describe_os_error(error)
    return f"worker {rank} failed: {type(error).__name__}: {' '.join(str(error).split())} (trace in {trace})"


def _no_second_attempt(folder: str) -> Any:
    """Return a callback that makes Ray Train give up instead of retrying once a worker has recorded an error."""
    from ray.train import UserCallback

    class NoSecondAttempt(UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
            if Path(folder, _FAILED).is_file():
                raise RuntimeError(f"a retry would hit the same error: see {Path(folder, _FAILED)}")
            with Path(folder, PROGRESS).open("a", encoding="utf-8") as log:
                log.write(f"{_LOST}\n")

    return NoSecondAttempt()


def _share(there: Sequence[Machine], wanted: int, *, gpus: bool) -> dict[str, float]:
    """Return the resources of each worker.

    Raises:
        CseError: not all workers find a place.
    """
    gpu = 1 if gpus else 0
    cpus = cpus_each(there, wanted, gpu)
    if not cpus:
        most = places(there, 1, gpu)
        raise CseError(
            f"train.workers: {wanted} workers, but there are places for {most}: each takes {in_words(1, gpu)} of one "
            f"machine, and Ray has {listed_machines(there)}; {f'give at most {most}' if most else 'add machines'}"
        )
    return {"GPU": 1, "CPU": cpus} if gpus else {"CPU": cpus}


@contextmanager
def _followed(log: Path, waits: Callable[[], str]) -> Iterator[None]:
    """Print the lines that the first worker writes to the log; while no worker runs, say every so often what for."""
    log.touch()
    since: float | None = time.monotonic()  # when the workers began to wait, or the last line about it
    with log.open(encoding="utf-8") as stream:
        stream.seek(0, 2)

        def show() -> None:
            nonlocal since
            for line in stream:
                since = time.monotonic() if line.startswith(_LOST) else None
                click.echo(line.rstrip("\n"), err=True)
            if since is not None and time.monotonic() - since >= WAIT_SECONDS:
                since = time.monotonic()
                click.echo(waits(), err=True)

        try:
            with watching(show, 0.5):
                yield
        finally:
            show()


def _reason(error: Exception) -> str:
    """Return one line on why Ray Train gave up."""
    failures = getattr(error, "worker_failures", None) or {}
    causes = [getattr(failure, "cause", None) or failure for failure in failures.values()] or [error]
    lines = [line for line in str(causes[0]).splitlines() if line.strip()]
    return f"train.workers: gave up after losing {MOST_LOSSES} workers: {lines[-1].strip() if lines else 'no message'}"
