"""A ``cse`` command as a Prefect task: its output goes to the run's log, its error becomes the run's last message."""

from __future__ import annotations

from typing import Any

from prefect import get_run_logger, task
from prefect.client.schemas import State
from prefect.states import Completed, Failed

from flows.processes import CommandError, explain, run_module
from flows.repository import find_root
from flows.stages import OPTIONS, failed, message_of
from flows.workspace import Workspace


@task(task_run_name="{name}", **OPTIONS)
def run_command(name: str, arguments: list[str], module: str = "cse.cli", place: Workspace | None = None) -> State[Any]:
    """Run ``cse ARGUMENTS``, or another module of the project, in the project's folder or in a workspace.

    Returns:
        Completed with the command's last line; Failed if a retry would fail too.

    Raises:
        TryLater: Prefect retries the task.
    """
    log = get_run_logger()
    last = ""

    def read(line: str) -> None:
        nonlocal last
        last = line
        log.info("%s", line)

    try:
        run_module(
            module, arguments, place.folder if place else find_root(), read, place.environment if place else None
        )
    except CommandError as error:
        return failed(*explain(name, error.code, error.last_lines))
    return Completed(message=last)


def ended(state: State[Any]) -> State[Any]:
    """Return the state of a flow from that of its only task; Prefect would count the task's own, not quote it."""
    kind = Completed if state.is_completed() else Failed
    return kind(message=message_of(state))
