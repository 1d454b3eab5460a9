"""``python -m cse.stages.domain NAME``: prepare, train and score a domain of the bank with prompts of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from cse.evaluation.dev_facts import DEV, START, dev_facts_in
from cse.files import is_json_with, write_rounded_json
from cse.outputs import check_file, publish_file
from cse.settings import Settings
from cse.settings.domains import settings_of_domain
from cse.settings.load import PARAMS_FILE, load_settings
from cse.stages.common import DOMAINS, METRICS, SCRATCH, run_safely
from cse.stages.evaluate import evaluate_stage
from cse.stages.place import Place
from cse.stages.prepare import prepare_stage


def domain_stage(
    settings: Settings,
    name: str,
    *,
    place: Path = DOMAINS,
    metrics: Path = METRICS / "domains",
    scratch: Path = SCRATCH,
) -> None:
    """Make everything of one domain: prepared data, checkpoint, metrics, records and plots.

    A killed run resumes its training from the last saved state.

    Args:
        settings: of the domain, see ``cse.settings.domains``.
        metrics: parent of the domain's scores, ``NAME.json``.
    """
    own, scores = Place(place / name), metrics / f"{name}.json"
    folder, prepared = own.folder, own.folder / "prepared"
    check_file(scores, is_json_with("dev_spearman"))
    click.echo(f"domain {name}: {settings.bank.domains[name].data}")
    prepare_stage(settings, prepared=prepared, progress=sys.stderr.isatty())
    own.train(settings, prepared, scratch=scratch, plots=own.plots / "train")
    evaluate_stage(
        settings,
        prepared=prepared,
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
@click.argument("name")
def main(name: str) -> None:
    """Make everything of domain NAME of params.yaml."""
    domain_stage(settings_of_domain(load_settings(PARAMS_FILE, any_view=True), name), name)


if __name__ == "__main__":
    sys.exit(run_safely(lambda: main.main(standalone_mode=False)))
