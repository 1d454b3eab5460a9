"""Train several domains of the bank side by side with Ray; each worker loads the backbone once.

    python -m cse.bench.domains NAME... --json ended.json

Each domain does what stage ``domain`` of ``dvc.yaml`` does, in the same folders; the flow train-bank then commits the
results to DVC.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cse.bench.domain import domain_stage
from cse.bench.worker import Backbones, RunWorker, work_through
from cse.errors import CseError
from cse.files import write_json
from cse.outputs import publish_file
from cse.settings import Settings
from cse.settings.domains import settings_of_domain
from cse.settings.load import PARAMS_FILE, load_settings
from cse.stages.common import SCRATCH, run_safely


class DomainWorker(RunWorker):
    """Trains one domain after the other in its own process.

    Args:
        settings: the whole tree.
        folder: the project's folder.
        scratch: folder for the states of killed runs.
        threads: CPU threads to use.
    """

    def __init__(self, settings: Settings, folder: str, scratch: str, threads: int) -> None:
        super().__init__(threads)
        os.chdir(folder)
        self.settings, self.scratch, self.backbones = settings, Path(scratch), Backbones()

    def do(self, name: str) -> None:
        """Train one domain."""
        own = settings_of_domain(self.settings, name)
        domain_stage(own, name, scratch=self.scratch, backbone=self.backbones.of(own))


def main(names: Sequence[str], json_path: Path | None = None) -> None:
    """Train the named domains of ``params.yaml`` and say as each ends what became of it.

    Args:
        names: domains to train.
        json_path: file for that too: why each domain failed, by name; empty if it did not.

    Raises:
        CseError: a name is unknown, or at least one domain failed; the others are finished.
    """
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
    given = (settings, str(Path.cwd()), str(SCRATCH.resolve()))
    for name, reason in work_through(
        DomainWorker, lambda threads: (*given, threads), names, at_once=settings.bank.at_once, unit="domain",
        done="trained",
    ):  # fmt: skip
        ended[name] = reason
        if json_path is not None:
            with publish_file(json_path) as target:
                write_json(target, ended)
    failed = [f"{name}: {reason}" for name, reason in ended.items() if reason]
    if failed:
        raise CseError(f"{len(failed)} of {len(names)} domains failed: {'; '.join(failed)}")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write here what became of each domain.")
def command(names: Sequence[str], json_path: Path | None) -> None:
    """Train the named domains of params.yaml side by side."""
    main(names, json_path)


if __name__ == "__main__":
    sys.exit(run_safely(lambda: command.main(standalone_mode=False)))
