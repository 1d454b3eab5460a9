"""Commands of ``cse`` as flows: the parameters are the command's, its output goes to the run's log.

Its error becomes the run's last message.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from prefect import Flow, flow
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas import State
from prefect.states import Completed, Failed
from pydantic import Field

from cse.cli.adapt import adapt
from cse.cli.evaluate import evaluate
from cse.cli.exchange import export
from cse.cli.search import index_command
from cse.stages.common import CHECKPOINT
from flows.parameters import Overrides, as_options
from flows.repository import find_root
from flows.stages import run_command

_PARAMS, _OVERRIDES = "params", "overrides"  # a flow reads the project's params.yaml; its overrides are a dictionary
_REQUIRED = inspect.Parameter.empty


def flow_of(
    command: click.Command,
    about: Mapping[str, str],
    work: Callable[[dict[str, Any]], State[Any]] | None = None,
    but: Sequence[str] = (),
    **defaults: Any,
) -> Flow[..., Any]:
    """Return the flow ``NAME-cse`` of a command: Prefect makes its form from a function's signature and docstring.

    Args:
        about: what the command's arguments are; its options have their help.
        work: runs the command with the values of the parameters; default: and no more.
        but: parameters that the flow does not offer.
        defaults: those that differ from the command's.
    """

    def run(**given: Any) -> State[Any]:
        state = work(given) if work else run_with(command, given)
        kind = Completed if state.is_completed() else Failed  # Prefect would count a task's own state, not quote it
        return kind(message=state.message)

    context = click.Context(command)
    offered = [one for one in command.params if one.name not in (_PARAMS, *but)]
    helps = {
        str(one.name): "settings for this run, by dotted key" if one.name == _OVERRIDES else getattr(one, "help", "")
        for one in offered
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
        kind, default, known = Overrides, {}, True
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


def run_with(command: click.Command, given: Mapping[str, Any]) -> State[Any]:
    """Run a command in a task of its name."""
    return run_command(str(command.name), arguments_of(command, given), return_state=True)


def _adapt(given: dict[str, Any]) -> State[Any]:
    state = run_with(adapt, given)
    if not state.is_completed():
        return state
    summary = (find_root() / given["out"] / "summary.txt").read_text(encoding="utf-8")
    create_markdown_artifact(f"```\n{summary}```\n", key="adaptation")
    return Completed(message=summary.splitlines()[0])


def _evaluate(given: dict[str, Any]) -> State[Any]:
    with tempfile.TemporaryDirectory() as folder:
        scores = Path(folder, "scores.json")
        state = run_with(evaluate, given | {"json_path": str(scores)})
        if state.is_completed():
            rows = [{"model": model, **_row(tree)} for model, tree in json.loads(scores.read_text()).items()]
            create_table_artifact(table=rows, key="scores")
    return state


def _row(tree: dict[str, Any]) -> dict[str, float]:
    """Return a model's scores from the JSON of ``cse evaluate``: STS tasks, averages, tasks of one's own."""
    named = tree.get("sts", {}) | {key: value for key, value in tree.items() if key != "sts"}
    row = {
        name: round(value["all"], 2)
        for name, value in named.items()
        if isinstance(value, dict) and isinstance(value.get("all"), int | float)
    }
    own = tree.get("tasks", {}).items()
    return row | {f"{name} ({one['main']})": round(one["values"][one["main"]], 2) for name, one in own}


adapt_cse = flow_of(
    adapt,
    {"sources": "documents, plain sentences, pairs or triplets, files or folders; the first is the main one"},
    _adapt,
)
evaluate_cse = flow_of(
    evaluate,
    {"models": "checkpoints, bundles, or bare backbones given by folder or hub id; `NAME=MODEL` names a row"},
    _evaluate,
    but=("json_path", "style"),
    models=[str(CHECKPOINT)],
)
export_cse = flow_of(
    export,
    {"model": "a checkpoint, or a bare backbone given by folder or hub id"},
    out=_REQUIRED,  # train-cse writes the pipeline's own, data/bundle
)
index_cse = flow_of(
    index_command, {"texts": "tables, text files or pages: a file, a folder or a glob, a path or a URL"}
)
