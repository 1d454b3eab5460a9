"""``cse serve``: the server on one machine, in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from deploy.server.options import Options

_LONGEST_DRAIN = 86_400
_EXAMPLES = """\b
Examples:
  cse serve data/bundle
  cse serve data/bank --port 9000 --api-keys keys.txt
  cse serve sentence-encoder@production

\b
Then:
  curl http://127.0.0.1:8080/v1/embeddings -H 'Content-Type: application/json' \\
       -d '{"model": "bundle", "input": "Where is my card?"}'
"""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each field of ``Options``, with its default and description."""
    for name, field in reversed(Options.model_fields.items()):
        if name == "model":
            continue
        kind: dict[str, Any] = {"is_flag": True} if field.annotation is bool else {"type": _type_of(field.annotation)}
        shown = field.default is not None and not kind.get("is_flag")
        flag = "--" + name.replace("_", "-")
        command = click.option(flag, default=field.default, show_default=shown, help=field.description, **kind)(command)
    return command


def _type_of(annotation: Any) -> Any:
    arguments = getattr(annotation, "__args__", None)
    if arguments and all(isinstance(one, str) for one in arguments):
        return click.Choice(arguments)
    kinds = {int: click.INT, float: click.FLOAT, str: click.STRING, Path: click.Path(path_type=Path)}
    return next(kind for one, kind in kinds.items() if one is annotation or one in (arguments or ()))


@click.command(epilog=_EXAMPLES)
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: every one.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0: any free one.")
@click.option("--drain", type=float, default=30.0, show_default=True, help="Seconds to finish requests after SIGTERM.")
@_options
def serve(model: str, host: str, port: int, drain: float, **options: Any) -> None:
    """Serve a bundle, a bank or a promoted version: OpenAI's API, Text Embeddings Inference's, and a page at /.

    MODEL is a folder (`cse export`, `cse bank create`) or NAME@STAGE of the registry. A bank serves each of its domains
    as a model of its own, and follows its folder; NAME@STAGE follows the registry.
    """
    from pydantic import ValidationError

    from cse.errors import CseError
    from deploy.server.run import run

    if not 0 <= drain <= _LONGEST_DRAIN:  # also true of nan
        raise CseError(f"--drain: {drain}; give 0 to {_LONGEST_DRAIN} seconds")
    try:
        given = Options(model=model, **options)
    except ValidationError as error:
        first = error.errors()[0]
        raise CseError(f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}") from None
    run(given, host, port, drain)


@click.command("serve-key", epilog="\b\nExample:\n  cse serve-key 'search team' >> keys.txt")
@click.argument("whose", default="")
@click.option("--models", metavar="NAME,NAME", help="Models that it opens; default: all.")
def serve_key(whose: str, models: str | None) -> None:
    """Make an API key: the key goes to stderr, once; its line for the server's file goes to stdout."""
    from cse.errors import one_line
    from deploy.server.keys import new_key

    key, hashed = new_key()
    click.echo(key, err=True)
    named = "" if models is None else f" models={''.join(one_line(models).split())}"
    click.echo(f"{hashed}{named} {one_line(whose)}".rstrip())
