"""Train several domains of the bank side by side with Ray; each worker loads the backbone once.

    python -m cse.bench.domains NAME... --json ended.json

Each domain does what stage ``domain`` of ``dvc.yaml`` does, in the same folders; the flow train-bank then commits the
results to DVC.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from cse.bench.domain import domain_stage
from cse.bench.worker import Backbones, work_through
from cse.errors import CseError
from cse.files import write_json
from cse.outputs import publish_file
from cse.settings import Settings
from cse.settings.domains import settings_of_domain
from cse.settings.load import PARAMS_FILE, load_settings
from cse.stages.common import SCRATCH, run_safely

_backbones = Backbones()  # of a worker, which trains one domain after the other


def train_domain(settings: Settings, folder: Path, scratch: Path, name: str) -> None:
    """Train one domain."""
    os.chdir(folder)
    own = settings_of_domain(settings, name)
    domain_stage(own, name, scratch=scratch, backbone=_backbones.of(own))


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write here why each failed; empty: it did not."
)
def main(names: Sequence[str], json_path: Path | None) -> None:
    """Train the named domains of params.yaml side by side, and say as each ends what became of it."""
    settings = load_settings(PARAMS_FILE, any_view=True)
    if not names:
        raise CseError("python -m cse.bench.domains NAME...: name domains of bank.domains in params.yaml")
    for name in names:  # refuse a mistake before anything is trained
        workers = settings_of_domain(settings, name).train.workers
        if workers > 1:
            raise CseError(
                f"bank.domains.{name}: train.workers is {workers}, but domains are trained side by side, one worker "
                f"each; set it to 1, or run `dvc repro domain@{name}`"
            )
    ended: dict[str, str] = {}
    do = partial(train_domain, settings, Path.cwd(), SCRATCH.resolve())
    for name, reason in work_through(do, names, at_once=settings.bank.at_once, unit="domain", done="trained"):
        ended[name] = reason
        if json_path is not None:
            with publish_file(json_path) as target:
                write_json(target, ended)
    failed = [f"{name}: {reason}" for name, reason in ended.items() if reason]
    if failed:
        raise CseError(f"{len(failed)} of {len(names)} domains failed: {'; '.join(failed)}")


if __name__ == "__main__":
    sys.exit(run_safely(lambda: main.main(standalone_mode=False)))
