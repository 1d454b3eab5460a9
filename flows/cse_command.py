"""A ``cse`` command as a flow: its parameters are the command's, its output goes to the run's log.

Its error becomes the run's last message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from prefect import get_run_logger, task
from prefect.client.schemas import State
from prefect.states import Completed, Failed
from pydantic import Field

from flows.parameters import Overrides, as_options
from flows.processes import CommandError, explain, run_module
from flows.repository import find_root
from flows.stages import OPTIONS, failed, message_of
from flows.workspace import Workspace

_PARAMS, _OVERRIDES = "params", "overrides"  # a flow reads the project's params.yaml; its overrides are a dictionary
_OVERRIDES_HELP = "settings for this run, by dotted key"
Work = Callable[..., State[Any]]


def takes(command: click.Command, but: Collection[str] = ()) -> Callable[[Work], Work]:
    """Give a function the parameters of a command: Prefect reads a function's signature and docstring.

    Args:
        command: its arguments and options become keywords; those that the function names itself stay as they are.
        but: parameters of the command that the flow does not offer.
    """
    context = click.Context(command)

    def add(work: Work) -> Work:
        own = [one for one in _parameters(work) if one.kind is one.POSITIONAL_OR_KEYWORD]
        known = {_PARAMS, *but, *(one.name for one in own)}
        offered = [one for one in command.params if one.name not in known]
        work.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own, *(_parameter(one, one.get_default(context)) for one in offered)]
        )
        work.__doc__ = f"{work.__doc__}" + "".join(f"    {one.name}: {_help(one)}\n    " for one in offered)
        return work

    return add


def _parameters(work: Work) -> list[inspect.Parameter]:
    return list(inspect.signature(work, eval_str=True).parameters.values())


def _parameter(one: click.Parameter, default: Any) -> inspect.Parameter:
    default = str(default) if isinstance(default, Path) else default
    known = isinstance(default, str | int | float | bool)
    kind: Any = str
    if one.name == _OVERRIDES:
        kind, default = Overrides, {}
    elif one.nargs == -1 or one.multiple:
        kind, default = list[str], []
    elif isinstance(one, click.Option) and one.is_flag:
        kind, default = bool, known and default
    elif isinstance(one.type, click.Choice):
        kind = Literal[tuple(one.type.choices)]
    elif isinstance(one.type, click.IntRange):
        kind = Annotated[int, Field(ge=one.type.min)]
    if one.required:
        default = inspect.Parameter.empty
    elif not known and not isinstance(default, list | dict):  # no default, whatever click has in its place
        kind, default = kind | None, None
    return inspect.Parameter(str(one.name), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _help(one: click.Parameter) -> str:
    return _OVERRIDES_HELP if one.name == _OVERRIDES else str(getattr(one, "help", ""))


def arguments_of(command: click.Command, given: Mapping[str, Any]) -> list[str]:
    """Return the command line, from the command's name on, for parameters of a flow; what is None is left out."""
    places: list[str] = []
    options: list[str] = []
    for one in command.params:
        value = given.get(str(one.name))
        values = value if isinstance(value, list) else [] if value is None else [value]
        if isinstance(one, click.Argument):
            places += map(str, values)
        elif one.name == _OVERRIDES:
            options += as_options(value or {})
        elif isinstance(one, click.Option) and one.is_flag:
            options += [] if value is None else (one.opts if value else one.secondary_opts)[:1]
        else:
            options += [part for each in values for part in (one.opts[-1], str(each))]
    return [str(command.name), *places, *options]


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
