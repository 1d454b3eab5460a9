"""``cse settings`` and ``cse preset``: every key with what it does, and the papers' systems with their scores."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.cli.options import PATH, params_option
from cse.errors import CseError, nearest
from cse.settings import PARAMS_FILE, Settings, load_settings

if TYPE_CHECKING:
    from cse.settings.presets import PublishedScore

_WIDTH = 120
_NOTES = {
    "*": "as printed; differs from the mean of the printed scores (see `cse preset show`)",
    "t": "accuracy on the transfer tasks; all others are Spearman x 100 on the seven STS tasks",
}


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
            click.echo(textwrap.indent(textwrap.fill(text.replace("`", ""), 96), "    "))
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


@click.group()
def preset() -> None:
    """List, show and use published systems."""


@preset.command("list", epilog="\b\nExample:\n  cse preset list --system d2cse\n  cse preset list --rows")
@click.option("--system", default="", metavar="TEXT", help="Only presets whose name contains TEXT.")
@click.option("--rows", "by_row", is_flag=True, help="List every row of the three papers with its presets.")
def list_presets(system: str, by_row: bool) -> None:
    """List presets: table and row of the paper, published average, description."""
    from cse.settings.presets import preset_names

    names = [name for name in preset_names() if system.lower() in name]
    if not names:
        raise CseError(f"--system: no preset has {system!r} in its name; see `cse preset list`")
    if by_row:
        _print_coverage(None if not system else set(names))
    else:
        _print_table(names)


@preset.command(epilog="\b\nExample:\n  cse preset show promcse-eh-bert-base")
@click.argument("name")
def show(name: str) -> None:
    """Show a preset: source, published scores, settings."""
    from cse.settings.document import yaml_value
    from cse.settings.load import walk_keys
    from cse.settings.presets import load_preset, rows_of

    chosen = load_preset(name)
    click.echo(f"{chosen.name}: {chosen.description}")
    for title, text in (
        ("source", chosen.source), ("expect", chosen.expect), ("note", chosen.notes), ("data", chosen.data),
    ):  # fmt: skip
        if text:
            click.echo(_wrap(f"{title}: {text}", indent="  "))
    if not chosen.rows:
        click.echo("published: no row of the three papers")
    for row in rows_of(name):
        of = row.selector
        title = f"{of.paper} table {of.table}, {of.setting}, {of.model}, {of.backbone}"
        click.echo(_wrap(f"published: {title}", indent="  "))
        scores = [f"{_label(score)} {_number(score)}".replace(" ", "\xa0") for score in row.scores]  # wrapped between
        click.echo(_wrap(f"  {'  '.join(scores)}", indent="  ").replace("\xa0", " "))
        if row.misprinted:
            click.echo(f"  the average is as printed; the mean of the printed scores is {row.mean:.2f}")
    click.echo("settings:")
    for key, _ in walk_keys():
        if key in chosen.settings:
            click.echo(f"  {key}: {yaml_value(chosen.settings[key])}")


@preset.command(
    epilog="\b\nExamples:\n  cse preset use promcse-unsup-bert-base\n  cse preset use promcse-eh-bert-base --keep-data"
)
@click.argument("name")
@click.option("-p", "--params", type=PATH, default=PARAMS_FILE, show_default=True, help="File to write.")
@click.option("--keep-data", is_flag=True, help="Keep your data: in group data, change only the view.")
def use(name: str, params: Path, keep_data: bool) -> None:
    """Write a preset to params.yaml.

    Keeps comments and machine settings. A paper's preset also selects the paper's training text, all rows of it.
    """
    from cse.settings.load import flatten, load_settings
    from cse.settings.presets import apply_preset, data_in_words

    changes = apply_preset(name, params, keep_data=keep_data)
    for key, (old, new) in changes.items():
        click.echo(f"  {key}: {old} -> {new}")
    data = data_in_words(flatten(load_settings(params).model_dump(include={"data"})))
    click.echo(f"{params}: now {name}, {len(changes)} keys changed; `dvc repro` trains it on {data}")


def _print_table(names: Sequence[str]) -> None:
    from cse.settings.presets import TRANSFER, load_preset, rows_of

    width, marks = max(map(len, names)), set()
    line = f"{{:{width}}}  {{:24}}  {{:>6}}{{:1}}  {{}}".format
    click.echo(line("preset", "table and row", "Avg.", "", "description"))
    for name in names:
        where, average, mark = "-", "-", ""
        for row in rows_of(name)[:1]:
            paper = row.selector.paper
            where = f"{paper} {row.selector.table}: {row.selector.model}"
            where = where if len(where) <= 24 else where.replace(f": {paper} ", ": ")
            if row.average is not None:
                average = f"{row.average.value:.2f}"
                mark = "*" if row.misprinted else "t" if row.average.metric == TRANSFER else ""
        marks.add(mark)
        about = load_preset(name).description
        click.echo(line(name, _cut(where, 24), average, mark, _cut(about, _WIDTH - width - 37)))
    for mark, meaning in _NOTES.items():
        if mark in marks:
            click.echo(f"{mark} {meaning}")


def _print_coverage(wanted: set[str] | None) -> None:
    """Print the rows of the papers, table by table; only those of ``wanted`` presets, if given."""
    from cse.settings.presets import coverage

    table = ""
    for row, presets, reason in coverage():
        selector = row.selector
        if wanted is not None and not wanted & set(presets):
            continue
        if table != (table := f"{selector.paper} table {selector.table}"):
            click.echo(table)
        who = ", ".join(presets) if presets else f"quoted only: {reason}"
        click.echo(_wrap(f"  {selector.setting}, {selector.model}, {selector.backbone}: {who}", indent="      "))
    if not table:
        click.echo("no row of the three papers")


def _label(score: PublishedScore) -> str:
    if score.is_average:
        return "Avg."
    if "bootstrap" in score.metric:
        return f"{score.dataset} {'std' if '_std_' in score.metric else 'mean'}"
    on_tasks = score.metric in ("spearman_x100", "accuracy", "hyperparameter") or score.metric.startswith("cosine")
    return score.dataset if on_tasks else score.metric.replace("_", " ")


def _number(score: PublishedScore) -> str:
    if isinstance(score.value, bool):
        return str(score.value).lower()
    if score.metric in ("spearman_x100", "accuracy"):
        return f"{score.value:.2f}"
    return f"{score.value:.1f}" if "bootstrap" in score.metric else f"{score.value:g}"


def _wrap(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
