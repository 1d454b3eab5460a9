"""Launcher of stage ``train`` that runs the training loop on several workers with Ray Train.

All workers open the same training, run the same loop and share each batch. The first one's state goes into Ray Train's
storage: a folder of the run or, where machines share no disk, what ``CSE_STORAGE`` names. If a worker is lost, Ray
Train restarts with as many workers as are available, and they resume from the saved state.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cse.errors import CseError
from cse.scale.machines import Machine, cpus_each, free_in_words, in_words, listed_machines, places, with_more
from cse.scale.relay import LOST, Failure, followed, start_relay
from cse.scale.session import ray_session
from cse.scale.shared_rows import SharedRows
from cse.scale.storage import filesystem, is_local
from cse.scale.train_worker import WorkerTask, work
from cse.stages.train import watchers
from cse.training.ready import Training
from cse.training.state import RunFolder, RunState

if TYPE_CHECKING:
    from ray.train import Checkpoint

MOST_LOSSES = 3  # lost workers before a run gives up
STORAGE_VARIABLE = "CSE_STORAGE"  # a variable, not a setting: it changes nothing in the result
_ROWS = ("prepared", "mined", "corrupted")  # folders
_LOST = "a worker was lost; the others start again from the saved state"
_TRACE = "trace.txt"  # of a bug in a worker


def train_on_workers(training: Training) -> RunState:
    """Train on ``train.workers`` workers and leave the best weights in the encoder."""
    wanted, folder = training.settings.train.workers, training.folder.path
    folders = {name: path.resolve() for name, path in vars(training.folders).items() if name in _ROWS}
    url, rows = os.environ.get(STORAGE_VARIABLE, "").rstrip("/"), None
    if url:
        rows = SharedRows(f"{url}/{folder.name}", folder.name)
        rows.put({name: path for name, path in folders.items() if path.is_dir()})
    else:
        training.tables()  # workers memory-map it
    with ray_session() as ray:
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        gpus = training.device.type == "cuda"
        each = _share(with_more(ray), wanted, gpus=gpus)
        relay = start_relay(ray)
        settings, tokens = training.settings.model_dump(mode="json"), training.folders.tokens
        trainer = TorchTrainer(
            work,
            train_loop_config={"task": WorkerTask(settings, folders, tokens and tokens.resolve(), rows, relay)},
            scaling_config=ScalingConfig(
                num_workers=(1, wanted),  # at least 1
                use_gpu=gpus,
                resources_per_worker=each,
            ),
            run_config=RunConfig(
                name=folder.name,
                **_storage(url or str((folder / "ray").resolve())),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
                failure_config=FailureConfig(max_failures=MOST_LOSSES),
                callbacks=[_no_second_attempt(relay)],
            ),
        )

        def waits() -> str:
            taken = in_words(each["CPU"], each.get("GPU", 0))
            return f"train.workers: no worker runs; each waits for {taken} of one machine; {free_in_words(ray)}"

        with followed(lambda: ray.get(relay.take.remote()), relay.refuse.remote, lambda: watchers(training), waits):
            try:
                saved = trainer.fit().checkpoint
            except Exception as error:
                failure: Failure | None = ray.get(relay.failed.remote())
                raise CseError(_reason(error) if failure is None else _words(failure, folder)) from None
        state = training.take_over(_loaded(saved))
    shutil.rmtree(folder / "ray", ignore_errors=True)
    if rows:
        rows.remove()
    return state


def _loaded(saved: Checkpoint | None) -> RunState | None:
    """Return the state in a checkpoint of Ray Train, if there is a whole one."""
    if saved is None:
        return None
    with saved.as_directory() as there:
        return RunFolder(Path(there)).load()


def _storage(place: str) -> dict[str, Any]:
    """Return Ray Train's options for a folder or URL; fsspec opens it, as everywhere here."""
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    fs, path = filesystem(place)
    return {"storage_path": path} | ({} if is_local(fs) else {"storage_filesystem": PyFileSystem(FSSpecHandler(fs))})


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


def _words(failure: Failure, folder: Path) -> str:
    """Return what a worker told, and keep the traceback of a bug."""
    if not failure.trace:
        return failure.words
    (folder / _TRACE).write_text(failure.trace, encoding="utf-8")
    return f"{failure.words} (trace in {folder / _TRACE})"


def _reason(error: Exception) -> str:
    """Return one line on why Ray Train gave up."""
    failures = getattr(error, "worker_failures", None) or {}
    causes = [getattr(failure, "cause", None) or failure for failure in failures.values()] or [error]
    lines = [line for line in str(causes[0]).splitlines() if line.strip()]
    return f"train.workers: gave up after losing {MOST_LOSSES} workers: {lines[-1].strip() if lines else 'no message'}"
