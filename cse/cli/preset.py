"""``cse preset``: the papers' hyperparameters by name, with their published scores."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.errors import CseError
from cse.settings import PARAMS_FILE

if TYPE_CHECKING:
    from cse.settings.presets import PaperRow, PublishedScore

_WIDTH = 120
_ROW_WIDTH = 24
_AVERAGE_WIDTH = 7


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
        _print_coverage(names, everything=not system)
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
        click.echo(_scores(row.scores))
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
@click.option(
    "-p", "--params", type=click.Path(path_type=Path), default=PARAMS_FILE, show_default=True, help="File to write."
)
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


def _print_table(names: list[str]) -> None:
    from cse.settings.presets import load_preset, rows_of

    width = max(map(len, names))
    rest = _WIDTH - width - _ROW_WIDTH - _AVERAGE_WIDTH - 6
    click.echo(f"{'preset':{width}}  {'table and row':{_ROW_WIDTH}}  {'Avg.':>{_AVERAGE_WIDTH - 1}}   description")
    marks = set()
    for name in names:
        first = next(iter(rows_of(name)), None)
        average, mark = _average(first)
        marks.add(mark)
        click.echo(
            f"{name:{width}}  {_where(first):{_ROW_WIDTH}}  {average:>{_AVERAGE_WIDTH - 1}}{mark or ' '}  "
            f"{_cut(load_preset(name).description, rest)}"
        )
    for mark, meaning in (
        ("*", "as printed; differs from the mean of the printed scores (see `cse preset show`)"),
        ("t", "accuracy on the transfer tasks; all others are Spearman x 100 on the seven STS tasks"),
    ):
        if mark in marks:
            click.echo(f"{mark} {meaning}")


def _where(row: PaperRow | None) -> str:
    """Return paper, table and name of a row, truncated to the column width."""
    if row is None:
        return "-"
    paper, model = row.selector.paper, row.selector.model
    start = f"{paper} {row.selector.table}: "
    if len(start + model) > _ROW_WIDTH:
        model = model.removeprefix(f"{paper} ")
    return _cut(start + model, _ROW_WIDTH)


def _average(row: PaperRow | None) -> tuple[str, str]:
    """Return a row's printed average and its footnote mark."""
    from cse.settings.presets import TRANSFER

    if row is None or row.average is None:
        return "-", ""
    mark = "*" if row.misprinted else "t" if row.average.metric == TRANSFER else ""
    return f"{row.average.value:.2f}", mark


def _print_coverage(names: list[str], *, everything: bool) -> None:
    from cse.settings.presets import coverage

    table = ""
    wanted = set(names)
    for row, presets, reason in coverage():
        selector = row.selector
        if not everything and not wanted & set(presets):
            continue
        heading = f"{selector.paper} table {selector.table}"
        if heading != table:
            click.echo(heading)
            table = heading
        who = ", ".join(presets) if presets else f"quoted only: {reason}"
        click.echo(_wrap(f"  {selector.setting}, {selector.model}, {selector.backbone}: {who}", indent="      "))
    if not table:
        click.echo("no row of the three papers")


def _scores(scores: Iterable[PublishedScore]) -> str:
    """Format scores side by side, wrapped between scores."""
    lines = [""]
    for score in scores:
        text = f"  {_label(score)} {_number(score)}"
        if len(lines[-1]) + len(text) > _WIDTH:
            lines.append("")
        lines[-1] += text
    return "\n".join(lines)


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
