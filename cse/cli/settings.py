"""``cse settings``: every key, its default and what it does."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import click

from cse.cli.options import params_option
from cse.errors import CseError, nearest
from cse.settings import PARAMS_FILE, Settings, load_settings

_WIDTH = 100


@click.command(
    "settings",
    epilog="\b\nExamples:\n  cse settings                    every key\n"
    "  cse settings augment            one group\n"
    "  cse settings learning_rate      every key or meaning that has the word\n"
    "  cse settings --changed          what params.yaml sets to something else than the default\n\n\b\n"
    "To set one:\n  cse train -s KEY=VALUE              for one run\n"
    "  dvc exp run -S KEY=VALUE            as an experiment; +KEY=VALUE if params.yaml lacks the key",
)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--changed", is_flag=True, help="Only keys whose value in the settings file is not the default.")
@params_option
def settings_command(words: Sequence[str], changed: bool, params: Path) -> None:
    """List the settings: key, default, values, meaning.

    Where the settings file has another value than the default, it is shown too.
    """
    from cse.settings.document import describe_values, leaves, yaml_value

    there = params.exists() or params != PARAMS_FILE
    own = load_settings(params, any_view=True) if there else Settings()
    values = {leaf.key: leaf.value for leaf in leaves(own)}
    shown, known = 0, []
    for key, field, default, about in leaves():
        known.append(key)
        if words and not any(_fits(word.lower(), key, about) for word in words):
            continue
        differs = values[key] != default
        if changed and not differs:
            continue
        start = "required" if field.is_required() else yaml_value(default)
        here = f"   {params}: {click.style(yaml_value(values[key]), bold=True)}" if differs else ""
        click.echo(f"{click.style(key, bold=True)}: {start}{here}")
        for text in (describe_values(field), about):
            click.echo(textwrap.indent(textwrap.fill(text.replace("`", ""), _WIDTH - 4), "    "))
        shown += 1
    if not shown and changed:
        click.echo(f"{params}: every setting {'named so ' if words else ''}has its default")
    elif not shown:
        groups = [*Settings.model_fields, *known]
        raise CseError(f"{' '.join(words)}: no setting has it in its key or meaning{nearest(words[0], groups)}")


def _fits(word: str, key: str, about: str) -> bool:
    """A group or key by its name; any other word wherever it stands."""
    if word in Settings.model_fields:
        return key.startswith(f"{word}.")
    return word in key or word in about.lower()
