"""One stage of ``dvc.yaml`` as one Prefect task: DVC decides what has to run, Prefect shows it and tries again.

DVC is the cache, so Prefect's own is off. A stage ends in one of three states, by which a reader sees what a run cost:
``Skipped`` (nothing had changed), ``Restored`` (computed before, taken from DVC's cache) and ``Executed``.
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
_STEP = re.compile(r"^step \d+/\d+ \((\d+) %\)")


class TryLater(RuntimeError):  # noqa: N818 - what to do, not what went wrong
    """A failure that another attempt may not meet: a hub, a remote or a lock that was away, a killed process."""


def worth_another_try(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Tell Prefect to retry what raised ``TryLater``, and nothing else: bad parameters stay bad."""
    return isinstance(state.result(raise_on_failure=False), TryLater)


def failed(message: str, later: bool) -> State[Any]:
    """Return the state of a task that failed.

    Raises:
        TryLater: another attempt may succeed, and there is one left.
    """
    if later and (task_run.get_run_count() or 0) <= len(RETRY_SECONDS):
        raise TryLater(message)
    return Failed(message=message)


# of every task here: DVC is the cache, and some failures pass
OPTIONS: dict[str, Any] = {
    "cache_policy": NO_CACHE,
    "retries": len(RETRY_SECONDS),
    "retry_delay_seconds": RETRY_SECONDS,
    "retry_condition_fn": worth_another_try,
}


@task(task_run_name="{stage}", **OPTIONS)
def repro_stage(stage: str, workspace: Workspace, pull: bool) -> State[Any]:
    """Bring one stage up to date and copy what it says into the run's log.

    Returns:
        The state that Prefect shows. Failed where another attempt would fail too, or was the last.

    Raises:
        TryLater: Prefect starts the task again; a training goes on from its last saved state.
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
    SKIPPED: "nothing had changed",
    RESTORED: "computed before; outputs came from DVC's cache",
    EXECUTED: "ran",
}


def outcome_in(line: str, stage: str) -> str | None:
    """Return what a line of ``dvc repro`` says about a stage, or None where it says nothing about that."""
    if line.startswith((f"Stage '{stage}' is cached - skipping run", "Pulling data for stage")):
        return RESTORED
    return EXECUTED if line.startswith(f"Running stage '{stage}'") else None


@task(task_run_name="pull", **OPTIONS)
def pull_data(workspace: Workspace) -> State[Any]:
    """Fetch what ``dvc.lock`` and ``*.dvc`` files name from the remote; what it does not have yet is left out."""
    return _with_remote(["pull", "--allow-missing", "--run-cache"], workspace)


@task(task_run_name="push", **OPTIONS)
def push_data(workspace: Workspace) -> State[Any]:
    """Send outputs, and the record of what was computed from what, to the remote."""
    return _with_remote(["push", "--run-cache"], workspace)


def _with_remote(arguments: list[str], workspace: Workspace) -> State[Any]:
    log = get_run_logger()
    try:
        run_dvc(arguments, workspace.folder, lambda line: log.info("%s", line))
    except CommandError as error:
        said = [line for line in error.last_lines if line.startswith("ERROR: ")] or error.last_lines[-1:]
        return failed(
            f"{arguments[0]}: the remote refused or does not answer: {' '.join(said).removeprefix('ERROR: ')}; "
            "`dvc remote list` shows where it is. What was computed is in DVC's cache: the same run again goes on with "
            f"the {arguments[0]}",
            later=True,
        )
    return Completed()


def raise_for(state: State[Any]) -> None:
    """Turn a stage's failed state into an error with its message.

    Raises:
        CseError: the state is not completed.
    """
    if not state.is_completed():
        raise CseError(message_of(state))


def message_of(state: State[Any]) -> str:
    """Return what a state says, without Prefect's words around an exception of ours."""
    message = (state.message or state.name or "failed").removeprefix("Task run encountered an exception ")
    return message.removeprefix("TryLater: ")
