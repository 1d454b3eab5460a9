"""One Prefect task per stage of ``dvc.yaml``: DVC decides what has to run, Prefect shows it and retries.

DVC is the cache, so Prefect's own is off. The end state of a stage shows what the run cost:
``Skipped`` (nothing changed), ``Restored`` (computed before, taken from DVC's cache) and ``Executed``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prefect import Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State, StateDetails, TaskRun
from prefect.states import Completed, Failed

from cse.errors import CseError
from cse.settings.document import yaml_value
from flows.processes import HINTS, CommandError, explain, run_dvc, run_module
from flows.repository import find_root
from flows.workspace import Workspace

SKIPPED, RESTORED, EXECUTED = "Skipped", "Restored", "Executed"
_MEANING = {
    SKIPPED: "nothing changed",
    RESTORED: "computed before; outputs restored from DVC's cache",
    EXECUTED: "ran",
}
# no later attempt will be told otherwise
_REFUSED = re.compile(
    r"bucket does not exist|NoSuchBucket|Access ?Denied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|"
    r"Unable to locate credentials|Permission denied|Not a directory|File exists|Read-only file system"
)
_BEFALLEN = re.compile(r"failed to transfer '.*' - |unexpected error - ")


def worth_another_try(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Have Prefect retry only what ``failed`` calls temporary: bad parameters stay bad."""
    return bool(state.state_details.retriable)


def failed(message: str, later: bool) -> State[Any]:
    """Return the state of a task that failed; ``later``: a retry may succeed, the hub was away, or it was killed."""
    return Failed(message=message, state_details=StateDetails(retriable=later))


# of every task here
OPTIONS: dict[str, Any] = {
    "cache_policy": NO_CACHE,
    "retries": 2,
    "retry_delay_seconds": [10, 60],
    "retry_condition_fn": worth_another_try,
}


@task(task_run_name="{stage}", **OPTIONS)
def repro_stage(stage: str, workspace: Workspace, pull: bool) -> State[Any]:
    """Bring one stage up to date and copy its output to the run's log; tried again, a training resumes."""
    log, outcome = get_run_logger(), SKIPPED

    def read(line: str) -> None:
        nonlocal outcome
        outcome = outcome_in(line, stage) or outcome
        if not HINTS.match(line):
            log.info("%s", line)

    options = ["--pull"] if pull else []
    try:
        run_dvc(["repro", *options, "--single-item", stage], workspace.folder, read, workspace.environment)
    except CommandError as error:
        return failed(*explain(stage, error.code, error.last_lines))
    return Completed(name=outcome, message=_MEANING[outcome])


def outcome_in(line: str, stage: str) -> str | None:
    """Return the state of a stage that a line of ``dvc repro`` reports, or None."""
    if line.startswith((f"Stage '{stage}' is cached - skipping run", "Pulling data for stage")):
        return RESTORED
    return EXECUTED if line.startswith(f"Running stage '{stage}'") else None


@task(task_run_name="{name}", **OPTIONS)
def run_command(name: str, arguments: list[str]) -> State[Any]:
    """Run ``cse ARGUMENTS`` in the project's folder; the state has its last line."""
    log, last = get_run_logger(), ""

    def read(line: str) -> None:
        nonlocal last
        last = line
        log.info("%s", line)

    try:
        run_module("cse", arguments, find_root(), read)
    except CommandError as error:
        return failed(*explain(name, error.code, error.last_lines))
    return Completed(message=last)


def as_options(overrides: Mapping[str, Any]) -> list[str]:
    """Return overrides as options of ``cse``."""
    return [part for key, value in overrides.items() for part in ("--set", f"{key}={yaml_value(value)}")]


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
    """Turn a task's failed state into an error with its message."""
    if not state.is_completed():
        raise CseError(state.message or state.name or "failed")
