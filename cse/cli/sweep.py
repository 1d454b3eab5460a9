"""``python -m cse.cli.sweep``: a sweep over prepared data, in its own process; the flow adds DVC."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cse.cli.options import settings_from, settings_options
from cse.files import write_json
from cse.stages.common import CORRUPTED, MINED, PREPARED, SCRATCH, run_safely
from cse.tune.driver import run_sweep
from cse.tune.outcome import describe


@click.command()
@settings_options
@click.option("--data", type=click.Path(path_type=Path), default=PREPARED, show_default=True, help="Prepared data.")
@click.option("--mined", type=click.Path(path_type=Path), default=MINED, show_default=True)
@click.option("--corrupted", type=click.Path(path_type=Path), default=CORRUPTED, show_default=True)
@click.option("--scratch", type=click.Path(path_type=Path), default=SCRATCH, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write here where the sweep lies.")
def main(
    params: Path,
    overrides: Sequence[str],
    data: Path,
    mined: Path,
    corrupted: Path,
    scratch: Path,
    json_path: Path | None,
) -> None:
    """Search for better settings than those in params.yaml, as set in group tune."""
    settings = settings_from(params, overrides)
    sweep = run_sweep(settings, prepared=data, mined=mined, corrupted=corrupted, scratch=scratch)
    click.echo(describe(sweep))
    click.echo(f"sweep folder: {sweep.folder}")
    if json_path is not None:
        write_json(json_path, {"folder": str(sweep.folder)})


if __name__ == "__main__":
    sys.exit(run_safely(lambda: main.main(standalone_mode=False)))
