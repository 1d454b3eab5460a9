"""One worker of a training on several: its rows, its share of the loop, and the state it leaves in the storage."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cse.errors import CseError, describe_os_error
from cse.files import naming
from cse.process import throwaway_folder
from cse.scale.relay import GROUP, Failure, Teller
from cse.scale.shared_rows import SharedRows
from cse.settings import Settings
from cse.training import Folders
from cse.training.group import Group, PeerLost
from cse.training.observers import Observer
from cse.training.ready import open_training
from cse.training.state import RunFolder, RunState

_DRAFTS = "cse-train-"  # folders of what is on its way to the storage


@dataclass(frozen=True)
class WorkerTask:
    """What every worker is given.

    Attributes:
        folders: where the rows are: prepared, mined and corrupted ones.
        rows: where the rows are instead, if machines share no disk; each machine then makes its own tokens.
    """

    settings: dict[str, Any]
    folders: dict[str, Path]
    tokens: Path | None
    rows: SharedRows | None
    relay: Any


def work(config: dict[str, WorkerTask]) -> None:
    """Run one worker of Ray Train."""
    import ray
    from ray.train import get_context
    from ray.train.torch import get_device

    task = config["task"]

    def fail(failure: Failure) -> None:
        ray.get(task.relay.fail.remote(failure))

    context, own = get_context(), Path(tempfile.mkdtemp(prefix=_DRAFTS))
    gone = throwaway_folder(own, f"{_DRAFTS}*", f"{own}: in use by another process; run again")
    with told(fail, context.get_world_rank()), gone:
        folders, tokens = task.folders, task.tokens
        if task.rows is not None:
            here = task.rows.here()
            folders, tokens = {name: here / name for name in folders}, here / "tokens"
        settings = Settings.model_validate(task.settings)
        training = open_training(settings, Folders(**folders, tokens=tokens), scratch=own, folder=own)
        group, observer = Group.joined(get_device()), Observer()
        if group.rank == 0:
            task.relay.tell.remote(GROUP, f"workers that share each batch: {group.size}")
            observer = Teller(task.relay)
        replace(training, device=get_device(), folder=ReportedState(own)).run(observer, group)
        if task.rows is not None and context.get_local_rank() == 0:
            task.rows.remove_here()


class ReportedState(RunFolder):
    """The state of a run as a checkpoint in Ray Train's storage, from which a worker on any machine goes on.

    All workers save at the same step. Ray Train takes a state every two seconds; ``save`` and ``save_behind`` wait
    until it has taken the one before.
    """

    def load(self) -> RunState | None:
        """Return the last state that Ray Train has taken."""
        from ray.train import get_checkpoint

        last = get_checkpoint()
        if last is None:
            return None
        with last.as_directory() as folder:
            return RunFolder(Path(folder)).load()

    def _write_all(self, state: RunState | None) -> None:
        from ray.train import Checkpoint, get_context, report

        if state is None:
            report({})
            return
        there = Path(get_context().get_storage().experiment_fs_path)
        with tempfile.TemporaryDirectory(dir=self.path) as draft, naming(there):
            RunFolder(Path(draft)).save(state)
            report({"step": state.step, "dev": state.best_score}, Checkpoint.from_directory(draft))


@contextmanager
def told(fail: Callable[[Failure], None], rank: int) -> Iterator[None]:
    """Tell and re-raise an error of this worker, since a retry would hit it again.

    The error ends the worker, and Ray Train then stops the others. Errors caused by the loss of another worker are not
    told.
    """
    try:
        yield
    except PeerLost:
        raise
    except Exception as error:
        fail(Failure(_words(error, rank), "" if _expected(error) else traceback.format_exc()))
        raise


def _expected(error: Exception) -> bool:
    return isinstance(error, CseError | OSError)


def _words(error: Exception, rank: int) -> str:
    if isinstance(error, CseError):
        return str(error)
    if isinstance(error, OSError):
        return describe_os_error(error)
    return f"worker {rank} failed: {type(error).__name__}: {' '.join(str(error).split())}"
