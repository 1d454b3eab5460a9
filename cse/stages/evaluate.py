"""Stage ``evaluate``: the checkpoint and its bare backbone, side by side on the similarity tasks."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import click

from cse.data.store import PreparedData
from cse.evaluation.sts import StsResults, evaluate_sts
from cse.evaluation.table import format_table
from cse.files import publish_file
from cse.model.checkpoint import load_checkpoint, training_notes
from cse.model.encoder import SentenceEncoder
from cse.model.static_words import StaticWords
from cse.settings import Settings
from cse.stages.common import CHECKPOINT, METRICS, PLOTS, PREPARED, run_stage
from cse.training.precision import choose_device

GROUPS = ("evaluation",)
TRAINED, BACKBONE = "trained", "backbone"


class Scores(Protocol):
    """Results that can be written: of the similarity tasks, or of the full evaluation."""

    def to_dict(self) -> dict[str, Any]:
        """Return nested numbers."""
        ...


def evaluate_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    checkpoint: Path = CHECKPOINT,
    metrics: Path = METRICS / "evaluation.json",
    plot: Path = PLOTS / "sts.csv",
) -> None:
    """Score the checkpoint and, where the settings ask for it, the bare backbone; write metrics and a plot's data."""
    tasks = PreparedData(prepared).tasks
    models = {TRAINED: load_checkpoint(checkpoint)}
    if settings.evaluation.compare_backbone and not isinstance(models[TRAINED].backbone, StaticWords):
        models[BACKBONE] = SentenceEncoder.load(models[TRAINED].backbone.files.name)
    device = choose_device(settings.evaluation.device)
    results: dict[str, StsResults] = {}
    if tasks:
        for name, model in models.items():
            click.echo(f"encoding with {name}", err=True)
            results[name] = evaluate_sts(model.to(device), tasks, settings.evaluation.batch_size, sys.stderr.isatty())
        click.echo(format_table(results))
        notes = training_notes(checkpoint)
        if notes:
            click.echo(f"{TRAINED}: {notes}")
    else:
        click.echo("no evaluation data: give data.evaluation_path a SentEval folder or a file of scored pairs")
    with publish_file(metrics) as target:
        _write_rounded(target, {name: headline(result) for name, result in results.items()})
    with publish_file(plot) as target:
        _write_plot(target, results)


def write_json(path: Path, results: Mapping[str, Scores]) -> None:
    """Write all scores by model and task, with ``mean``, ``wmean``, counts and settings, four decimals."""
    _write_rounded(path, {name: result.to_dict() for name, result in results.items()})


def headline(result: StsResults) -> dict[str, float]:
    """Return one number a task (``all``) and the averages, as ``dvc metrics show`` has room for."""
    scores = {task: score.all for task, score in result.tasks.items()}
    averages = {
        result.average_name: result.average(),
        f"{result.average_name} (mean)": result.average("mean"),
        f"{result.average_name} (wmean)": result.average("wmean"),
    }
    return scores | {name: value for name, value in averages.items() if value is not None}


def _write_rounded(path: Path, tree: Mapping[str, Any]) -> None:
    rounded = json.loads(json.dumps(tree), parse_float=lambda digits: round(float(digits), 4))
    path.write_text(json.dumps(rounded, indent=2) + "\n", encoding="utf-8")


def _write_plot(path: Path, results: Mapping[str, StsResults]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["task", "model", "spearman"])
        for name, result in results.items():
            writer.writerows([task, name, f"{score.all:.4f}"] for task, score in result.tasks.items())


if __name__ == "__main__":
    run_stage(evaluate_stage)
