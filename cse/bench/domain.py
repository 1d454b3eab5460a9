"""Stage ``domain``: prepare, train and score one domain of the bank with prompts of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from cse.bench.data import DataFolders
from cse.bench.place import Place
from cse.errors import CseError
from cse.evaluation.dev_facts import DEV, START, dev_facts_in
from cse.files import is_json_with, write_rounded_json
from cse.model.backbone import Backbone
from cse.outputs import check_file, publish_file
from cse.settings import Settings
from cse.settings.domains import load_domain_settings
from cse.stages.common import DOMAINS, METRICS, SCRATCH, run_safely
from cse.stages.evaluate import evaluate_stage

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
    folder, data = own.folder, DataFolders.below(own.folder)
    check_file(scores, is_json_with("dev_spearman"))
    click.echo(f"domain {name}: {settings.bank.domains[name].data}")
    data.prepare(settings, backbone=backbone)
    own.train(settings, data, scratch=scratch, plots=own.plots / "train", backbone=backbone)
    evaluate_stage(
        settings,
        prepared=data.prepared,
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


def main(arguments: list[str]) -> None:
    """Run the stage for the domain that is named, with the settings in ``params.yaml``."""
    if len(arguments) != 1:
        raise CseError("python -m cse.bench.domain NAME: give one name of bank.domains in params.yaml")
    domain_stage(load_domain_settings(arguments[0]), arguments[0])


if __name__ == "__main__":
    sys.exit(run_safely(lambda: main(sys.argv[1:])))
