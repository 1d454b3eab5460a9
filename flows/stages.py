"""One Prefect task per stage of ``dvc.yaml``: DVC decides what has to run, Prefect shows it and retries.

DVC is the cache, so Prefect's own is off. The end state of a stage shows what the run cost:
``Skipped`` (nothing changed), ``Restored`` (computed before, taken from DVC's cache) and ``Executed``.
"""

from __future__ import annotations

import re
from typing import Any

from prefect import Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State, TaskRun
from prefect.runtime import task_run
from prefect.states import Completed, Failed

from cse.errors import CseError
from flows.artifacts import Progress
from flows.processes import HINTS, CommandError, explain, run_dvc
from flows.workspace import Workspace

SKIPPED, RESTORED, EXECUTED = "Skipped", "Restored", "Executed"
RETRY_SECONDS: list[float] = [10, 60]  # before the second and the third attempt
# no later attempt will be told otherwise
_REFUSED = re.compile(
    r"bucket does not exist|NoSuchBucket|Access ?Denied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|"
    r"Unable to locate credentials|Permission denied|Not a directory|File exists|Read-only file system"
)
_BEFALLEN = re.compile(r"failed to transfer '.*' - |unexpected error - ")
_STEP = re.compile(r"^step \d+/\d+ \((\d+) %\)")


class TryLater(RuntimeError):  # noqa: N818 - what to do, not what went wrong
    """A failure that a retry may fix: hub, remote or lock unavailable, process killed."""


def worth_another_try(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Have Prefect retry only ``TryLater``: bad parameters stay bad."""
    return isinstance(state.result(raise_on_failure=False), TryLater)


def failed(message: str, later: bool) -> State[Any]:
    """Return the state of a task that failed.

    Raises:
        TryLater: a retry may succeed, and there is one left.
    """
    if later and (task_run.get_run_count() or 0) <= len(RETRY_SECONDS):
        raise TryLater(message)
    return Failed(message=message)


# for every task here: DVC is the cache, and some failures are temporary
OPTIONS: dict[str, Any] = {
    "cache_policy": NO_CACHE,
    "retries": len(RETRY_SECONDS),
    "retry_delay_seconds": RETRY_SECONDS,
    "retry_condition_fn": worth_another_try,
}


@task(task_run_name="{stage}", **OPTIONS)
def repro_stage(stage: str, workspace: Workspace, pull: bool) -> State[Any]:
    """Bring one stage up to date and copy its output to the run's log.

    Returns:
        The state that Prefect shows: Failed if a retry would fail too, or none is left.

    Raises:
        TryLater: Prefect retries the task; a training resumes from its last saved state.
    """
    log = get_run_logger()
    outcome = SKIPPED
    with Progress(stage) as progress:

        def read(line: str) -> None:
            nonlocal outcome
            outcome = outcome_in(line, stage) or outcome
            if share := _STEP.match(line):
                progress.show(float(share[1]), line)
            if not HINTS.match(line):
                log.info("%s", line)

        options = ["--pull"] if pull else []
        try:
            run_dvc(["repro", *options, "--single-item", stage], workspace.folder, read, workspace.environment)
        except CommandError as error:
            message, later = explain(stage, error.code, error.last_lines)
            return failed(message, later)
    return Completed(name=outcome, message=_MEANING[outcome])


_MEANING = {
    SKIPPED: "nothing changed",
    RESTORED: "computed before; outputs restored from DVC's cache",
    EXECUTED: "ran",
}


def outcome_in(line: str, stage: str) -> str | None:
    """Return the state of a stage that a line of ``dvc repro`` reports, or None."""
    if line.startswith((f"Stage '{stage}' is cached - skipping run", "Pulling data for stage")):
        return RESTORED
    return EXECUTED if line.startswith(f"Running stage '{stage}'") else None


@task(task_run_name="pull", **OPTIONS)
def pull_data(workspace: Workspace) -> State[Any]:
    """Pull what ``dvc.lock`` and ``*.dvc`` files list from the remote; skip what it does not have yet."""
    return _with_remote(["pull", "--allow-missing", "--run-cache"], workspace)


@task(task_run_name="push", **OPTIONS)
def push_data(workspace: Workspace) -> State[Any]:
    """Push outputs and the run cache to the remote."""
    return _with_remote(["push", "--run-cache"], workspace)


def _with_remote(arguments: list[str], workspace: Workspace) -> State[Any]:
    log = get_run_logger()
    try:
        run_dvc(arguments, workspace.folder, lambda line: log.info("%s", line))
    except CommandError as error:
        reason = reason_of_remote(error.last_lines)
        return failed(
            f"{arguments[0]}: the remote refused or does not respond: {reason}; check it with `dvc remote list`. "
            f"Results are in DVC's cache: run the same again to continue with the {arguments[0]}",
            later=not _REFUSED.search(reason),
        )
    return Completed()


def reason_of_remote(lines: list[str]) -> str:
    """Return why a remote failed, from the end of what DVC said: each reason once, without the files it befell."""
    said = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
    return "; ".join(dict.fromkeys(_BEFALLEN.sub("", line) for line in said))


def raise_for(state: State[Any]) -> None:
    """Turn a stage's failed state into an error with its message."""
    if not state.is_completed():
        raise CseError(message_of(state))


def message_of(state: State[Any]) -> str:
    """Return a state's message without the words that Prefect wraps around our exceptions."""
    message = (state.message or state.name or "failed").removeprefix("Task run encountered an exception ")
    return message.removeprefix("TryLater: ")
