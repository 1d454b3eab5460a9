"""``python -m cse.cli.sweep``: a sweep over prepared data, in its own process; ``cse tune`` and the flow add DVC."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from cse.cli.options import PATH, data_option, settings_from, settings_options
from cse.errors import CseError
from cse.files import write_json
from cse.settings import Settings
from cse.stages.common import MINED, SCRATCH, run_safely
from cse.training import Folders
from cse.tune.outcome import TRIALS, Sweep, TrialRecord, describe, draw

_Command = TypeVar("_Command", bound=Callable[..., Any])


def trial_options(command: _Command) -> _Command:
    """Give a command the options that say which settings are trained, with how many seeds, and what is confirmed."""
    for option in (
        click.option("--against", default="", metavar="SETTING", help="--confirm: compare with it, not the backbone."),
        click.option("--confirm", metavar="K", type=click.IntRange(min=0), default=0,
                     help="Train the best K with --seeds, choose, then open the test sets."),
        click.option("--seeds", metavar="S", type=click.IntRange(min=1), default=None,
                     help="Seeds per setting, from train.seed on; default: 1, to confirm 3."),
        click.option("--only", "names", multiple=True, metavar="SETTING", help="Try this named setting alone."),
    ):  # fmt: skip
        command = option(command)
    return command


def sweep_and_confirm(
    settings: Settings,
    rows: Folders,
    *,
    scratch: Path,
    names: Sequence[str],
    seeds: int | None,
    confirm: int,
    against: str,
) -> tuple[Sweep, TrialRecord]:
    """Run or resume a sweep, print what came out, and return it with the trial to promote.

    Args:
        against: a setting to compare the confirmed ones with; empty: the bare backbone.
    """
    from cse.tune.driver import run_sweep

    if against and not confirm:
        raise CseError("--against: names what confirmed settings are compared with; give --confirm too")
    seeds = seeds or (3 if confirm else 1)
    sweep, job = run_sweep(settings, rows, scratch=scratch, names=names, seeds=seeds, confirm=confirm)
    click.echo(describe(sweep))
    best = sweep.best
    if confirm:
        from cse.tune.confirm import confirm_best

        best = confirm_best(sweep, job, prepared=rows.prepared, count=confirm, seeds=seeds, against=against)
    for path in (sweep.folder / TRIALS, *draw(sweep)):
        click.echo(str(path))
    return sweep, best


@click.command()
@settings_options
@data_option
@click.option("--mined", type=PATH, default=MINED, show_default=True)
@click.option("--scratch", type=PATH, default=SCRATCH, show_default=True)
@click.option("--json", "json_path", type=PATH, help="Write here where the sweep lies.")
@trial_options
def main(
    params: Path, overrides: Sequence[str], data: Path, mined: Path, scratch: Path,
    json_path: Path | None, names: Sequence[str], seeds: int | None, confirm: int, against: str,
) -> None:  # fmt: skip
    """Search for better settings than those in params.yaml, as set in group tune."""
    settings = settings_from(params, overrides)
    sweep, _ = sweep_and_confirm(
        settings, Folders(data, mined), scratch=scratch, names=names, seeds=seeds, confirm=confirm,
        against=against,
    )  # fmt: skip
    if json_path is not None:
        write_json(json_path, {"folder": str(sweep.folder)})


if __name__ == "__main__":
    sys.exit(run_safely(lambda: main.main(standalone_mode=False)))
