"""Flow ``embed-cse``: embed the rows of a corpus. Its parameters are the options of ``cse embed``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from prefect import flow
from prefect.client.schemas import State
from prefect.states import Failed
from pydantic import Field

from cse.cli.corpus import embed
from flows.cse_command import ended, run_command

_OPTIONS = [option for option in embed.params if isinstance(option, click.Option) and option.name != "out"]
_DEFAULTS = embed.make_context("embed", ["CORPUS", "--out", "FOLDER"]).params


def _with_options(work: Callable[..., State[Any]]) -> Callable[..., State[Any]]:
    """Add a parameter for each option of the command: Prefect reads a function's signature and docstring."""
    parameters = inspect.signature(work, eval_str=True).parameters.values()
    own = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    work.__signature__ = inspect.Signature([*own, *map(_parameter, _OPTIONS)])  # type: ignore[attr-defined]
    work.__doc__ = f"{work.__doc__}" + "".join(f"    {option.name}: {option.help}\n    " for option in _OPTIONS)
    return work


def _parameter(option: click.Option) -> inspect.Parameter:
    name = str(option.name)
    kind: Any = bool if option.is_flag else str
    if isinstance(option.type, click.Choice):
        kind = Literal[tuple(option.type.choices)]
    elif isinstance(option.type, click.IntRange):
        kind = Annotated[int, Field(ge=option.type.min)]
    kind = kind | None if _DEFAULTS[name] is None else kind
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=kind)


@flow(name="embed-cse")
@_with_options
def embed_cse(out: str, corpus: str | None = None, text: str | None = None, **given: Any) -> State[Any]:
    """Embed a corpus like `cse embed`. Start a cancelled or killed run again to resume it.

    If `out` ends in .npy, a file is embedded like `cse encode`, which uses only the model (may also be a checkpoint),
    the text and domain columns, the batch size, the provider and the normalisation.

    Args:
        out: folder of shards, a path or a URL; or a .npy file, float32 (lines, dimension).
        corpus: txt, csv, tsv, jsonl or parquet: a file, a folder or a glob, a path or a URL. For .npy a local file.
        text: former name of corpus.
        **given: the options of the command:
    """
    source, options = corpus or text, _DEFAULTS | given
    if source is None:
        return Failed(message="corpus: missing; give a file, a folder or a glob")
    if Path(out).suffix == ".npy":
        arguments = ["encode", options["model"], source, "--out", out, "--device", options["provider"]]
        arguments += ["--batch-size", str(options["batch_size"]), "--normalize" if options["normalize"] else "--raw"]
        if options["text_column"] != _DEFAULTS["text_column"]:  # otherwise one of the common names
            arguments += ["--column", options["text_column"]]
        if options["domain_column"] is not None:
            arguments += ["--domain-column", options["domain_column"]]
    else:
        arguments = ["embed", source, "--out", out]
        for option in _OPTIONS:
            value = options[str(option.name)]
            if option.is_flag:
                arguments += (option.opts if value else option.secondary_opts)[:1]
            elif value is not None:
                arguments += [option.opts[0], str(value)]
    return ended(run_command("embed", arguments, return_state=True))
