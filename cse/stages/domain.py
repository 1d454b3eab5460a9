"""Stage ``domain``: prepare, train and score a domain of the bank with prompts of its own.

    python -m cse.stages.domain NAME... --json ended.json

Several are trained side by side with Ray, each in the folders that the stage has in ``dvc.yaml``; a worker loads the
backbone once. The flow train-bank then commits the results to DVC.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from cse.errors import CseError
from cse.evaluation.dev_facts import DEV, START, dev_facts_in
from cse.files import is_json_with, write_json, write_rounded_json
from cse.model.backbone import Backbone
from cse.outputs import check_file, publish_file
from cse.ray_session import side_by_side
from cse.settings import Settings
from cse.settings.domains import settings_of_domain
from cse.settings.load import PARAMS_FILE, load_settings
from cse.stages.common import DOMAINS, METRICS, SCRATCH, run_safely
from cse.stages.evaluate import evaluate_stage
from cse.stages.place import Place, kept_backbone, make_rows
from cse.training import Folders

GROUPS = (
    "data", "mine", "backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train", "evaluation",
    "bank",
)  # fmt: skip


def domain_stage(
    settings: Settings,
    name: str,
    *,
    place: Path = DOMAINS,
    metrics: Path = METRICS / "domains",
    scratch: Path = SCRATCH,
    backbone: Backbone | None = None,
) -> None:
    """Make everything of one domain: prepared data, checkpoint, metrics, records and plots.

    A killed run resumes its training from the last saved state.

    Args:
        settings: of the domain, see ``cse.settings.domains``.
        metrics: parent of the domain's scores, ``NAME.json``.
        backbone: a backbone that is already open; None: open it.
    """
    own, scores = Place(place / name), metrics / f"{name}.json"
    folder, rows = own.folder, Folders.below(own.folder)
    check_file(scores, is_json_with("dev_spearman"))
    click.echo(f"domain {name}: {settings.bank.domains[name].data}")
    make_rows(settings, rows, backbone=backbone)
    own.train(settings, rows, scratch=scratch, plots=own.plots / "train", backbone=backbone)
    evaluate_stage(
        settings,
        prepared=rows.prepared,
        checkpoint=own.checkpoint,
        metrics=folder / "evaluation.json",
        records=folder / "evaluation",
        plots=own.plots,
        called=name,
    )
    trained = read_domain_scores(folder)
    with publish_file(scores) as target:
        write_rounded_json(target, trained)


def read_domain_scores(folder: Path) -> dict[str, Any]:
    """Return the scores of a trained domain: ``dev_spearman`` (None without dev pairs), then tasks by model.

    With a dev task of another kind, its score follows, see ``cse.evaluation.dev_facts``.
    """
    train, evaluation = (
        json.loads((folder / f"{stage}.json").read_text(encoding="utf-8")) for stage in ("train", "evaluation")
    )
    dev = {key: train.get(key) for key in ("dev_spearman", "start_dev_spearman")}
    return dev | dev_facts_in(train, DEV, START) | evaluation


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write here why each failed; empty: it did not."
)
def main(names: Sequence[str], json_path: Path | None) -> None:
    """Train the named domains of params.yaml, several of them side by side."""
    whole = load_settings(PARAMS_FILE, any_view=True)
    if not names:
        raise CseError("python -m cse.stages.domain NAME...: name domains of bank.domains in params.yaml")
    owns = {name: settings_of_domain(whole, name) for name in names}  # refuses before anything is trained
    if len(owns) == 1:
        domain_stage(owns[names[0]], names[0])
        _tell(json_path, {names[0]: ""})
        return
    for name, own in owns.items():
        if own.train.workers > 1:
            raise CseError(
                f"bank.domains.{name}: train.workers is {own.train.workers}, but domains are trained side by side, "
                f"one worker each; set it to 1, or run `dvc repro domain@{name}`"
            )
    ended: dict[str, str] = {}
    do = partial(_train_domain, owns, Path.cwd(), SCRATCH.resolve())
    for name, reason in side_by_side(do, list(owns), at_once=whole.bank.at_once, unit="domain", done="trained"):
        ended[name] = reason
        _tell(json_path, ended)
    failed = [f"{name}: {reason}" for name, reason in ended.items() if reason]
    if failed:
        raise CseError(f"{len(failed)} of {len(names)} domains failed: {'; '.join(failed)}")


def _train_domain(owns: Mapping[str, Settings], folder: Path, scratch: Path, name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    os.chdir(folder)
    domain_stage(owns[name], name, scratch=scratch, backbone=kept_backbone(owns[name]))


def _tell(path: Path | None, ended: dict[str, str]) -> None:
    if path is not None:
        with publish_file(path) as target:
            write_json(target, ended)


if __name__ == "__main__":
    sys.exit(run_safely(lambda: main.main(standalone_mode=False)))
