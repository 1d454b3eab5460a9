"""Commands of ``cse`` as flows: the parameters are the command's, its output goes to the run's log.

Its error becomes the run's last message.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from prefect import Flow, flow
from prefect.client.schemas import State
from prefect.states import Completed, Failed
from pydantic import Field

from cse.cli.adapt import adapt
from cse.cli.evaluate import evaluate
from cse.cli.exchange import export
from cse.cli.search import index_command
from cse.stages.common import CHECKPOINT
from flows.stages import as_options, run_command
from flows.tune import tune

_PARAMS, _OVERRIDES = "params", "overrides"  # a flow reads the project's params.yaml; its overrides are a dictionary
_REQUIRED = inspect.Parameter.empty


def flow_of(
    command: click.Command,
    about: Mapping[str, str],
    but: Sequence[str] = (),
    **defaults: Any,
) -> Flow[..., Any]:
    """Return the flow ``NAME-cse`` of a command: Prefect makes its form from a function's signature and docstring.

    Args:
        about: what the command's arguments are; its options have their help.
        but: parameters that the flow does not offer.
        defaults: those that differ from the command's.
    """

    def run(**given: Any) -> State[Any]:
        state = run_command(str(command.name), arguments_of(command, given), return_state=True)
        kind = Completed if state.is_completed() else Failed  # Prefect would count a task's own state, not quote it
        return kind(message=state.message)

    context = click.Context(command)
    offered = [one for one in command.params if one.name not in (_PARAMS, *but)]
    helps = {
        str(one.name): "settings for this run, by dotted key" if one.name == _OVERRIDES else one.help or ""
        for one in offered
        if isinstance(one, click.Option)
    }
    lines = [f"    {name}: {text}" for name, text in {**helps, **about}.items()]
    run.__doc__ = "\n".join([f"Like `cse {command.name}`: {inspect.cleandoc(command.help or '')}\n", "Args:", *lines])
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(one, defaults.get(str(one.name), one.get_default(context))) for one in offered]
    )
    return flow(name=f"{command.name}-cse")(run)


def _parameter(one: click.Parameter, default: Any) -> inspect.Parameter:
    default = str(default) if isinstance(default, Path) else default
    known = isinstance(default, str | int | float | bool | list)
    kind: Any = str
    if one.name == _OVERRIDES:
        kind, default, known = dict[str, Any], {}, True
    elif one.nargs == -1 or one.multiple:
        kind, default, known = list[str], default if known else [], True
    elif isinstance(one, click.Option) and one.is_flag:
        kind, default = bool, known and default
    elif isinstance(one.type, click.Choice):
        kind = Literal[tuple(one.type.choices)]
    elif isinstance(one.type, click.IntRange):
        kind = Annotated[int, Field(ge=one.type.min)]
    if one.required or default is _REQUIRED:
        default = _REQUIRED
    elif not known:  # no default, whatever click has in its place
        kind, default = kind | None, None
    return inspect.Parameter(str(one.name), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


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


adapt_cse = flow_of(
    adapt,
    {"sources": "documents, plain sentences, pairs or triplets, files or folders; the first is the main one"},
)
evaluate_cse = flow_of(
    evaluate,
    {"models": "checkpoints, bundles, or bare backbones given by folder or hub id; `NAME=MODEL` names a row"},
    but=("style",),
    models=[str(CHECKPOINT)],
)
export_cse = flow_of(
    export,
    {"model": "a checkpoint, or a bare backbone given by folder or hub id"},
    out=_REQUIRED,  # train-cse writes the pipeline's own, data/bundle
)
index_cse = flow_of(
    index_command,
    {"texts": "tables, text files or pages: a file, a folder or a glob, a path or a URL"},
    but=("verify",),
)
tune_cse = flow_of(tune, {})
