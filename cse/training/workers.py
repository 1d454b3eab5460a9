"""A training on several workers: Ray Train runs the loop in each, with a share of every batch.

All workers open the same training. The first one's state goes into Ray Train's storage: a folder of the run or, where
machines share no disk, what ``CSE_STORAGE`` names; then the rows reach the workers through Ray's object store. If a
worker is lost, Ray Train starts again with as many workers as are available, and they resume from the saved state.
What the first worker sees, and the first error of any, reaches the command through an actor beside it (``Relay``).
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cse.errors import CseError, error_line
from cse.files import naming
from cse.losses.group import Group, PeerLost
from cse.process import throwaway_folder, watching
from cse.ray_session import (
    WAIT_SECONDS,
    Machine,
    cpus_each,
    free_in_words,
    in_words,
    listed_machines,
    places,
    ray_session,
    with_more,
)
from cse.settings import Settings
from cse.storage import filesystem, is_local
from cse.training.loop import take_best
from cse.training.observers import Observer, StepRecord
from cse.training.ready import Training, open_training
from cse.training.state import RunFolder, RunState

if TYPE_CHECKING:
    from ray.train import Checkpoint

MOST_LOSSES = 3  # lost workers before a run gives up
STORAGE_VARIABLE = "CSE_STORAGE"  # a variable, not a setting: it changes nothing in the result
GROUP, LOST = "group", "lost"  # events beside the methods of an observer
_LOST = "a worker was lost; the others start again from the saved state"
_TRACE = "trace.txt"  # of a bug in a worker
_DRAFTS = "cse-train-"  # folders of what is on its way to the storage


def train_on_workers(training: Training) -> RunState:
    """Train on ``train.workers`` workers and leave the best weights in the encoder."""
    wanted, folder = training.settings.train.workers, training.folder.path
    rows = training.data.folder.resolve()
    url = os.environ.get(STORAGE_VARIABLE, "").rstrip("/")
    with ray_session() as ray:
        from pyarrow.fs import FSSpecHandler, PyFileSystem
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        gpus = training.device.type == "cuda"
        each = _share(with_more(ray), wanted, gpus=gpus)
        relay = _start_relay(ray)
        settings = training.settings.model_dump(mode="json")
        store, path = filesystem(url or str((folder / "ray").resolve()))  # by fsspec, as everywhere here
        trainer = TorchTrainer(
            work,
            train_loop_config={"task": WorkerTask(settings, ray.put(files_in(rows)) if url else rows, relay)},
            scaling_config=ScalingConfig(
                num_workers=(1, wanted),  # at least 1
                use_gpu=gpus,
                resources_per_worker=each,
            ),
            run_config=RunConfig(
                name=folder.name,
                storage_path=path,
                storage_filesystem=None if is_local(store) else PyFileSystem(FSSpecHandler(store)),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
                failure_config=FailureConfig(max_failures=MOST_LOSSES),
                callbacks=[_no_second_attempt(relay)],
            ),
        )

        def waits() -> str:
            taken = in_words(each["CPU"], each.get("GPU", 0))
            return f"train.workers: no worker runs; each waits for {taken} of one machine; {free_in_words(ray)}"

        with followed(lambda: ray.get(relay.take.remote()), relay.fail.remote, training.watchers, waits):
            try:
                saved = trainer.fit().checkpoint
            except Exception as error:
                failure: Failure | None = ray.get(relay.failed.remote())
                raise CseError(_reason(error) if failure is None else in_line(failure, folder)) from None
        state = _state_in(saved)
        if state is None:
            raise CseError("train.workers: no whole state is in the storage; delete what is there and run again")
        take_best(training.encoder, state)
    if url:
        remove_run(store, f"{path}/{folder.name}", f"{url}/{folder.name}")
    return state


def remove_run(store: Any, path: str, shown: str) -> None:
    """Delete a run's folder; a storage that refuses is told of, since the run has ended."""
    try:
        store.rm(path, recursive=True)
    except Exception as error:  # each remote file system has its own exceptions
        click.echo(f"left behind, delete it yourself: {shown}: {type(error).__name__}: {error}", err=True)


def _share(there: Sequence[Machine], wanted: int, *, gpus: bool) -> dict[str, float]:
    """Return the resources of each worker."""
    gpu = 1 if gpus else 0
    cpus = cpus_each(there, wanted, gpu)
    if not cpus:
        most = places(there, 1, gpu)
        raise CseError(
            f"train.workers: {wanted} workers, but there are places for {most}: each takes {in_words(1, gpu)} of one "
            f"machine, and Ray has {listed_machines(there)}; {f'give at most {most}' if most else 'add machines'}"
        )
    return {"GPU": 1, "CPU": cpus} if gpus else {"CPU": cpus}


def _no_second_attempt(relay: Any) -> Any:
    """Return a callback that makes Ray Train give up instead of retrying once a worker has told an error."""
    from ray.train import UserCallback

    class NoSecondAttempt(UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
            import ray

            if failure := ray.get(relay.failed.remote()):
                raise RuntimeError(f"a retry would hit the same error: {failure.words}")
            relay.tell.remote(LOST, _LOST)

    return NoSecondAttempt()


def _reason(error: Exception) -> str:
    """Return one line on why Ray Train gave up."""
    failures = getattr(error, "worker_failures", None) or {}
    causes = [getattr(failure, "cause", None) or failure for failure in failures.values()] or [error]
    lines = [line for line in str(causes[0]).splitlines() if line.strip()]
    return f"train.workers: gave up after losing {MOST_LOSSES} workers: {lines[-1].strip() if lines else 'no message'}"


# ---- a worker -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerTask:
    """What every worker is given; ``rows``: folder of the prepared data, or a reference to its files in Ray's store."""

    settings: dict[str, Any]
    rows: Any
    relay: Any


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their names."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def unpacked(files: Mapping[str, bytes], folder: Path) -> Path:
    """Write what ``files_in`` returned into a new folder."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def work(config: dict[str, WorkerTask]) -> None:
    """Run one worker of Ray Train."""
    import ray
    from ray.train import get_context
    from ray.train.torch import get_device

    task, context = config["task"], get_context()
    own = Path(tempfile.mkdtemp(prefix=_DRAFTS))
    gone = throwaway_folder(own, f"{_DRAFTS}*", f"{own}: in use by another process; run again")
    with told(lambda failure: ray.get(task.relay.fail.remote(failure)), context.get_world_rank()), gone:
        rows = task.rows
        if not isinstance(rows, Path):
            rows = unpacked(ray.get(rows), own / "rows/prepared")
        training = open_training(Settings.model_validate(task.settings), rows, scratch=own, folder=own)
        group, observer = Group.joined(get_device()), Observer()
        if group.rank == 0:
            task.relay.tell.remote(GROUP, f"workers that share each batch: {group.size}")
            observer = Teller(task.relay)
        replace(training, device=get_device(), folder=ReportedState(own)).run(observer, group)


class ReportedState(RunFolder):
    """The state of a run as a checkpoint in Ray Train's storage, from which a worker on any machine goes on.

    All workers save at the same step. Ray Train takes a state every two seconds; ``save`` waits until it has taken the
    one before.
    """

    def load(self) -> RunState | None:
        """Return the last state that Ray Train has taken."""
        from ray.train import get_checkpoint

        return _state_in(get_checkpoint())

    def _write(self, state: RunState | None) -> None:
        from ray.train import Checkpoint, get_context, report

        if state is None:
            report({})
            return
        there = Path(get_context().get_storage().experiment_fs_path)
        with tempfile.TemporaryDirectory(dir=self.path) as draft, naming(there):
            RunFolder(Path(draft)).save(state)
            report({"step": state.step, "dev": state.best_score}, Checkpoint.from_directory(draft))


def _state_in(checkpoint: Checkpoint | None) -> RunState | None:
    """Return the state in a checkpoint of Ray Train, if there is a whole one."""
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return RunFolder(Path(folder)).load()


# ---- what workers tell --------------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """The error that ended a run, in a user's words, and the traceback of a bug."""

    words: str
    trace: str = ""


class Relay:
    """Holds what workers tell until the command asks; a Ray actor beside the command, so no disk is shared."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.failure: Failure | None = None

    def tell(self, *event: Any) -> Failure | None:
        """Take an event; return what has failed elsewhere, so that this worker stops too."""
        self.events.append(event)
        return self.failure

    def take(self) -> list[tuple[Any, ...]]:
        """Return the events since the last time."""
        events, self.events = self.events, []
        return events

    def fail(self, failure: Failure) -> None:
        """Take an error, of a worker or of the command's observers; the first counts: the others follow from it."""
        self.failure = self.failure or failure

    def failed(self) -> Failure | None:
        """Return the first error."""
        return self.failure


def _start_relay(ray: Any) -> Any:
    """Start a relay on this machine, which takes no CPU of the workers."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Relay).remote()


class Teller(Observer):
    """Tells the relay what an observer of the first worker sees; the command knows itself when all is over."""

    def __init__(self, relay: Any) -> None:
        self.relay = relay

    def start(self, done: int, steps: int) -> None:
        self._tell("start", done, steps)

    def step(self, record: StepRecord) -> None:
        self._tell("step", record)

    def evaluated(self, step: int, score: float, best: bool) -> None:
        self._tell("evaluated", step, score, best)

    def _tell(self, *event: Any) -> None:
        import ray

        if failure := ray.get(self.relay.tell.remote(*event)):
            raise CseError(failure.words)


@contextmanager
def told(fail: Callable[[Failure], object], rank: int) -> Iterator[None]:
    """Tell and re-raise an error of this worker, since a retry would hit it again.

    The error ends the worker, and Ray Train then stops the others. Errors caused by the loss of another worker are not
    told.
    """
    try:
        yield
    except PeerLost:
        raise
    except (CseError, OSError) as error:
        fail(Failure(error_line(error)))
        raise
    except Exception as error:
        words = f"worker {rank} failed: {type(error).__name__}: {error_line(error)}"
        fail(Failure(words, traceback.format_exc()))
        raise


def in_line(failure: Failure, folder: Path) -> str:
    """Return what a worker told, and keep the traceback of a bug."""
    if not failure.trace:
        return failure.words
    (folder / _TRACE).write_text(failure.trace, encoding="utf-8")
    return f"{failure.words} (trace in {folder / _TRACE})"


@contextmanager
def followed(
    take: Callable[[], list[tuple[Any, ...]]],
    fail: Callable[[Failure], object],
    observers: Callable[[], Observer],
    waits: Callable[[], str],
) -> Iterator[None]:
    """Pass on what workers tell to observers here; while no worker runs, say every so often what for.

    Args:
        fail: the relay's; takes an error of an observer.
        observers: makes those of one attempt; workers that start again have new ones.
    """
    since: float | None = time.monotonic()  # when the workers began to wait, or the last line about it
    watch, refused = Observer(), False

    def show() -> None:
        nonlocal since, watch, refused
        for name, *values in take():
            since = time.monotonic() if name == LOST else None
            if refused:
                continue
            try:
                if name in (GROUP, LOST):
                    click.echo(values[0], err=True)
                    continue
                if name == "start":
                    watch.close()
                    watch = observers()
                getattr(watch, name)(*values)
            except (CseError, OSError) as error:
                refused = True
                fail(Failure(error_line(error)))
        if since is not None and time.monotonic() - since >= WAIT_SECONDS:
            since = time.monotonic()
            click.echo(waits(), err=True)

    try:
        with watching(show, 0.5):
            yield
    finally:
        show()
        watch.close()
