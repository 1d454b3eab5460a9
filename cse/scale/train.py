"""The training loop on several workers, under Ray Train: a launcher of stage ``train``.

Each worker opens the same training and calls the same loop; what they share is the batch. The state of the run lies in
the run's folder, as it does with one worker. When a worker is lost, Ray Train starts the others again, with as many
workers as it can have, and they go on from there.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from cse.errors import CseError, describe_os_error
from cse.process import watching
from cse.scale.session import ray_session
from cse.settings import Settings
from cse.stages.training import Training, open_training
from cse.training.group import PeerLost, ProcessGroup
from cse.training.observers import CsvLog, Observer, Observers, ProgressBar, TensorBoard
from cse.training.state import RunState

MOST_LOSSES = 3  # lost workers of one run; more is no accident
PROGRESS = "progress.log"
_FAILED, _TRACE = "failed.txt", "trace.txt"  # the words of the first error of a worker's own, and where it arose


def train_on_workers(training: Training) -> RunState:
    """Train on ``train.workers`` workers and leave the best weights in the encoder.

    Raises:
        CseError: fewer CPUs or GPUs than workers, what a worker raised, or too many lost workers.
    """
    wanted = training.settings.train.workers
    folder = training.folder.path
    for name in (_FAILED, _TRACE):
        (folder / name).unlink(missing_ok=True)
    training.table()  # workers map it into memory
    with ray_session() as ray:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        gpus = training.device.type == "cuda"
        each = _share(ray.cluster_resources(), wanted, gpus=gpus)
        trainer = TorchTrainer(
            _work,
            train_loop_config={
                "settings": training.settings.model_dump(mode="json"),
                "prepared": str(training.prepared.resolve()),
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
                callbacks=[_no_second_attempt(str((folder / _FAILED).resolve()))],
            ),
        )
        with _followed(folder / PROGRESS):
            try:
                trainer.fit()
            except Exception as error:
                own = folder / _FAILED
                raise CseError(own.read_text(encoding="utf-8") if own.is_file() else _reason(error)) from None
    shutil.rmtree(folder / "ray", ignore_errors=True)
    return training.take_over()


def _work(config: dict[str, Any]) -> None:
    """Train as one worker."""
    from ray.train import get_context
    from ray.train.torch import get_device

    folder = Path(config["folder"])
    settings = Settings.model_validate(config["settings"])
    tokens = Path(config["tokens"]) if config["tokens"] else None
    with _told(folder, get_context().get_world_rank()):
        training = open_training(
            settings,
            prepared=Path(config["prepared"]),
            corrupted=Path(config["corrupted"]),
            scratch=folder,
            folder=folder,
            tokens=tokens,
        )
        group = ProcessGroup(get_device())
        with (folder / PROGRESS).open("a", encoding="utf-8", buffering=1) as log:
            watching: list[Observer] = []
            if group.rank == 0:
                log.write(f"workers that share each batch: {group.size}\n")
                watching = [ProgressBar(log), CsvLog(folder / "plots"), TensorBoard(folder / "tensorboard")]
            replace(training, device=get_device()).run(Observers(watching), group)


@contextmanager
def _told(folder: Path, rank: int) -> Iterator[None]:
    """Write down what goes wrong in this worker, which would be the same at another attempt, and raise it.

    The error ends the worker, and Ray Train then ends the others, wherever they wait for it. What a worker meets
    because another is gone is no error of its own.
    """
    try:
        yield
    except PeerLost:
        raise
    except Exception as error:
        with suppress(FileExistsError), (folder / _FAILED).open("x", encoding="utf-8") as stream:  # the first one's
            (folder / _TRACE).write_text(traceback.format_exc(), encoding="utf-8")
            stream.write(_words(error, rank, folder / _TRACE))
        raise


def _words(error: Exception, rank: int, trace: Path) -> str:
    if isinstance(error, CseError):
        return str(error)
    if isinstance(error, OSError):
        return describe_os_error(error)
    return f"worker {rank} failed: {type(error).__name__}: {' '.join(str(error).split())} (trace in {trace})"


def _no_second_attempt(failed: str) -> Any:
    """Return what has Ray Train give up, instead of starting again, once a worker has written down an error."""
    from ray.train import UserCallback

    class NoSecondAttempt(UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
            if Path(failed).is_file():
                raise RuntimeError(f"an error that another attempt would meet too: see {failed}")

    return NoSecondAttempt()


def _share(there: Mapping[str, float], wanted: int, *, gpus: bool) -> dict[str, float]:
    """Return what each worker gets of the cluster.

    Raises:
        CseError: there is less than one GPU, or CPU, for each.
    """
    kind = "GPU" if gpus else "CPU"
    count = int(there.get(kind, 0))
    if wanted > count:
        raise CseError(f"train.workers: {wanted} workers, but there are {count} {kind}s; give at most {count}")
    cpus = max(int(there.get("CPU", 0)) // wanted, 1)
    return {"GPU": 1, "CPU": cpus} if gpus else {"CPU": cpus}


@contextmanager
def _followed(log: Path) -> Iterator[None]:
    """Show the lines that the first worker writes."""
    log.touch()
    with log.open(encoding="utf-8") as stream:
        stream.seek(0, 2)

        def show() -> None:
            for line in stream:
                click.echo(line.rstrip("\n"), err=True)

        try:
            with watching(show, 0.5):
                yield
        finally:
            show()


def _reason(error: Exception) -> str:
    """Return in one line why Ray Train gave up."""
    failures = getattr(error, "worker_failures", None) or {}
    causes = [getattr(failure, "cause", None) or failure for failure in failures.values()] or [error]
    lines = [line for line in str(causes[0]).splitlines() if line.strip()]
    return f"train.workers: given up after {MOST_LOSSES} lost workers: {lines[-1].strip() if lines else 'no message'}"
