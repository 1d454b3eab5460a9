"""Train several domains of the bank side by side with Ray; each worker loads the backbone once.

    python -m cse.scale.domains NAME... --json ended.json

Each domain does what stage ``domain`` of ``dvc.yaml`` does, in the same folders; the flow train-bank then commits the
results to DVC.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from cse.errors import CseError, error_line, one_line
from cse.files import fingerprint, write_json
from cse.model.backbone import Backbone
from cse.model.backbone_files import find_backbone
from cse.outputs import publish_file
from cse.scale.side_by_side import side_by_side
from cse.settings import Settings
from cse.settings.domains import settings_of_domain
from cse.settings.load import PARAMS_FILE, load_settings
from cse.stages.common import SCRATCH, run_safely
from cse.stages.domain import domain_stage
from cse.stages.open_backbone import open_language_model


class Trained(NamedTuple):
    """Result of one domain: its name, and why it failed (empty if it did not)."""

    name: str
    reason: str


class DomainWorker:
    """Trains one domain after the other in its own process.

    Args:
        settings: the whole tree.
        folder: the project's folder.
        scratch: folder for the states of killed runs.
        threads: CPU threads to use.
    """

    def __init__(self, settings: Settings, folder: str, scratch: str, threads: int) -> None:
        import os

        import torch

        os.chdir(folder)
        torch.set_num_threads(threads)
        self.settings, self.scratch = settings, Path(scratch)
        self._backbones: dict[str, Backbone] = {}

    def run(self, name: str) -> Trained:
        """Train one domain; an error is its result, so that it does not cost the worker its backbone."""
        try:
            own = settings_of_domain(self.settings, name)
            domain_stage(own, name, scratch=self.scratch, backbone=self._backbone(own))
        except (CseError, OSError) as error:
            return Trained(name, error_line(error))
        except Exception as error:  # any error fails only this domain
            return Trained(name, one_line(f"{type(error).__name__}: {error}")[:300])
        return Trained(name, "")

    def _backbone(self, settings: Settings) -> Backbone:
        """Return an instance of the frozen backbone for one training, which shares the loaded weights."""
        key = fingerprint({"backbone": settings.backbone.model_dump(), "pooler": settings.pooler.kind})
        if key not in self._backbones:
            files = find_backbone(settings.backbone.name, settings.backbone.revision)
            opened = open_language_model(files, settings.backbone, settings.pooler)
            self._backbones = {key: opened}
        return self._backbones[key].sibling()


def train_domains(settings: Settings, names: Sequence[str], *, scratch: Path = SCRATCH) -> Iterator[Trained]:
    """Train domains, ``bank.at_once`` of them side by side, and yield each as it ends.

    If a worker is lost, its domain resumes from the last saved state on a new one.

    Args:
        settings: the whole tree.
        names: domains to train.
        scratch: folder for the states of killed runs.
    """
    given = (settings, str(Path.cwd()), str(scratch.resolve()))
    for ended in side_by_side(DomainWorker, lambda threads: (*given, threads), names, at_once=settings.bank.at_once):
        yield ended.result or Trained(ended.name, ended.lost)


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
        raise CseError("python -m cse.scale.domains NAME...: name domains of bank.domains in params.yaml")
    for name in names:  # refuse a mistake before anything is trained
        workers = settings_of_domain(settings, name).train.workers
        if workers > 1:
            raise CseError(
                f"bank.domains.{name}: train.workers is {workers}, but domains are trained side by side, one worker "
                f"each; set it to 1, or run `dvc repro domain@{name}`"
            )
    ended: dict[str, str] = {}
    for done in train_domains(settings, names):
        ended[done.name] = done.reason
        click.echo(f"domain {done.name}: {done.reason or 'trained'}")
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
