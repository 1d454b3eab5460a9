"""``cse study``: many settings, several seeds, chosen by dev scores before a test set is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.cli.options import settings_from, settings_options
from cse.errors import CseError

if TYPE_CHECKING:
    from cse.report.canvas import Picture
    from cse.settings import Settings
    from cse.study.plan import Study
    from cse.study.run import Folders

_EPILOG = """\b
Example:
  cse study run benchmarks/systems.study.yaml once -s data.train_path=nli.csv
  cse study show benchmarks/systems.study.yaml
  cse study run benchmarks/systems.study.yaml seeds --only promcse-kv --only simcse
  cse study choose benchmarks/systems.study.yaml seeds promcse-kv simcse
  cse study test benchmarks/systems.study.yaml --against simcse

STUDY is a YAML file with settings by name and the rounds they go through. docs/study.md tells more.
"""
_study_argument = click.argument("file", metavar="STUDY", type=click.Path(path_type=Path))
_out_option = click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of its trainings; default: .cse/study/NAME of the file."
)

_at_once_option = click.option(
    "--at-once", type=click.IntRange(min=1), help="Models side by side; default: one per CPU, or per GPU."
)
_pictures_option = click.option(
    "--pictures", type=click.Path(path_type=Path), metavar="FOLDER", help="Draw pictures of it into a folder."
)


@click.group(epilog=_EPILOG)
def study() -> None:
    """Compare many settings honestly: screen, confirm over seeds, choose, then test."""


@study.command("run", epilog="\b\nExample:\n  cse study run minilm.study.yaml screen --at-once 2")
@_study_argument
@click.argument("round_name", metavar="ROUND")
@click.option("--only", multiple=True, metavar="SETTING", help="Train this setting alone; may be repeated.")
@_at_once_option
@_out_option
@settings_options
def run_command(
    file: Path, round_name: str, only: Sequence[str], at_once: int | None, out: Path | None, params: Path,
    overrides: Sequence[str],
) -> None:  # fmt: skip
    """Train every setting of a round with each of its seeds and measure the dev parts.

    Run the same command again after a kill: what is done is not done again, and the training that was running resumes.
    The table grows with every training that ends.
    """
    from cse.evaluation.table import format_rows
    from cse.study.plan import runs_of
    from cse.study.run import run_round
    from cse.study.table import read_rows, table

    plan, settings, folders = _opened(file, params, overrides, out)
    runs = runs_of(plan, round_name, settings, only)
    failed = run_round(folders, round_name, plan.rounds[round_name], runs, at_once=at_once)
    click.echo(format_rows(table(read_rows(folders.folder, round_name)), "text"), nl=False)
    if failed:
        raise CseError(f"{failed} trainings failed; the table says why, and the same command tries them again")


@study.command("show", epilog="\b\nExample:\n  cse study show minilm.study.yaml --pictures docs")
@_study_argument
@click.option("--round", "round_name", default="", help="Show this round alone.")
@_pictures_option
@click.option(
    "--format", "style", type=click.Choice(["text", "markdown", "latex"]), default="text", show_default=True,
    help="How to print the table.",
)  # fmt: skip
@_out_option
def show_command(file: Path, round_name: str, pictures: Path | None, style: str, out: Path | None) -> None:
    """Print the dev scores so far, and draw them.

    `gained` is the dev score against the bare backbone, `kept` the mean difference to it over your own tasks.
    """
    from cse.evaluation.table import format_rows
    from cse.study.pictures import draw_along_training, draw_trade_off
    from cse.study.table import read_rows, table

    rows = read_rows(_folder(file, out), round_name)
    if not rows:
        raise CseError(f"{_folder(file, out)}: nothing was trained yet; `cse study run {file} ROUND` does")
    click.echo(format_rows(table(rows), style), nl=False)
    if pictures is not None:
        _save(pictures, draw_trade_off(rows), draw_along_training(rows))


@study.command("choose", epilog="\b\nExample:\n  cse study choose minilm.study.yaml whole kept-1 full-5e-5")
@_study_argument
@click.argument("round_name", metavar="ROUND")
@click.argument("names", metavar="SETTING...", nargs=-1, required=True)
@_out_option
def choose_command(file: Path, round_name: str, names: Sequence[str], out: Path | None) -> None:
    """Record which settings the dev scores chose; only then can they be tested.

    A later choice replaces an earlier one, which stays on record. A choice after a test is recorded as not blind.
    """
    from cse.study.choice import choose, say_choice

    say_choice(choose(_folders(file, out), round_name, names))


@study.command("test", epilog="\b\nExample:\n  cse study test minilm.study.yaml --against full-5e-5")
@_study_argument
@click.option("--against", default="", metavar="SETTING", help="Compare with it; default: the bare backbone.")
@_at_once_option
@_pictures_option
@_out_option
@settings_options
def measure_command(
    file: Path, against: str, at_once: int | None, pictures: Path | None, out: Path | None, params: Path,
    overrides: Sequence[str],
) -> None:  # fmt: skip
    """Measure the chosen settings on the test sets, seed by seed, and compare them.

    Figures are means over seeds and half of their 95 % interval (Student's t). Comparisons count
    items and seeds as sources of chance (docs/evaluate.md).
    """
    from cse.evaluation.comparison import compared_rows
    from cse.evaluation.table import format_rows
    from cse.study.choice import choices, say_choice
    from cse.study.outcome import compared, measure_chosen, result_table
    from cse.study.pictures import draw_test
    from cse.study.plan import BARE, runs_of

    plan, settings, folders = _opened(file, params, overrides, out)
    made = choices(folders)
    measured = runs_of(plan, made[-1].round, settings)[0].settings if made else settings
    systems = measure_chosen(folders, measured, at_once=at_once)
    say_choice(made[-1])
    click.echo(format_rows(result_table(systems), "text"), nl=False)
    if pictures is not None:
        _save(pictures, draw_test(systems))
    for before, after, results in compared(systems, against or BARE):
        click.echo(f"\n{after.name} ({after.runs}) against {before.name} ({before.runs})")
        click.echo(format_rows(compared_rows(results), "text"), nl=False)


def _save(folder: Path, *pictures: Picture | None) -> None:
    """Write pictures with their data into a folder, and say what they show."""
    from cse.files import begins_with
    from cse.outputs import check_file, publish_file

    for picture in filter(None, pictures):
        for suffix, content in (("png", picture.png), ("csv", picture.data.encode())):
            path = folder / f"{picture.name}.{suffix}"
            check_file(path, begins_with(content[:8]))  # PNG's mark, or the first column
            with publish_file(path) as target:
                target.write_bytes(content)
        click.echo(f"{folder / picture.name}.png: {picture.title}", err=True)


def _opened(file: Path, params: Path, overrides: Sequence[str], out: Path | None) -> tuple[Study, Settings, Folders]:
    from cse.study.plan import read_study

    return read_study(file), settings_from(params, overrides, any_view=True), _folders(file, out, params, overrides)


def _folders(file: Path, out: Path | None, params: Path | None = None, overrides: Sequence[str] = ()) -> Folders:
    from cse.study.run import Folders

    captions = Path() if params is None else Path(settings_from(params, overrides, any_view=True).data.cxc_path)
    return Folders(_folder(file, out), captions.resolve())


def _folder(file: Path, out: Path | None) -> Path:
    return (out or Path(".cse/study") / file.name.split(".")[0]).resolve()
