"""Stage ``evaluate``: compare the checkpoint with its bare backbone on the evaluation tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cse.data.store import PreparedData
from cse.data.suite import open_suite
from cse.evaluation.density import DENSITY_COLUMNS, density_rows
from cse.evaluation.suite import SuiteResults
from cse.evaluation.table import format_suite
from cse.files import write_csv, write_rounded_json
from cse.model.checkpoint import read_config
from cse.outputs import Kind, check_folder, publish_file, publish_folder
from cse.settings import Settings
from cse.stages.common import BACKBONE, CHECKPOINT, METRICS, PLOTS, PREPARED, RECORDS, TRAINED, run_stage, shortfall
from cse.stages.evaluate_models import evaluate_models, rows_of, save_record
from cse.stages.open_model import BackboneOf

GROUPS = ("evaluation",)


def evaluate_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    checkpoint: Path = CHECKPOINT,
    metrics: Path = METRICS / "evaluation.json",
    records: Path = RECORDS,
    plots: Path = PLOTS,
    called: str = TRAINED,
) -> None:
    """Score the checkpoint and, if ``evaluation.compare_backbone`` is set, the bare backbone.

    Write metrics, one record per model for ``cse report``, and the data of two plots: scores by task and the density
    of cosines by gold similarity.

    Args:
        settings: ``evaluation`` is used.
    """
    check_folder(records, Kind.RECORDS)
    data = open_suite(PreparedData(prepared))
    models: dict[str, str | BackboneOf] = {TRAINED: str(checkpoint)}
    if settings.evaluation.compare_backbone and not read_config(checkpoint)["backbone"]["words"]:
        models[BACKBONE] = BackboneOf(checkpoint)
    results: dict[str, SuiteResults] = {}
    own = data.own and "tasks" in settings.evaluation.measures
    if data.sts or data.transfer or data.cxc or own:
        results = evaluate_models(
            models,
            data,
            measures=settings.evaluation.measures,
            device=settings.evaluation.device,
            batch_size=settings.evaluation.batch_size,
            progress=sys.stderr.isatty(),
            details=True,
        )
        click.echo(format_suite(results, trained_on=rows_of(models)))
        short = shortfall({name: result.sts.figures for name, result in results.items() if result.sts is not None})
        if short:
            click.echo(f"the trained model is {short}")
    else:
        click.echo(
            "no evaluation data: set data.evaluation_path to a SentEval folder or a file of scored pairs, or "
            "data.task_path to a task of your own"
        )
    with publish_folder(records, Kind.RECORDS) as folder:
        for name, result in results.items():
            (folder / name).mkdir()
            shown = called if name == TRAINED else name
            save_record(folder / name, shown, models[name], result, settings.evaluation.device)
    with publish_file(metrics) as target:
        write_rounded_json(target, {name: headline(result) for name, result in results.items()})
    with publish_file(plots / "sts.csv") as target:
        rows = [
            (task, name, f"{value:.4f}")
            for name, result in results.items()
            if result.sts is not None
            for task, value in result.sts.figures.items()
        ]
        write_csv(target, ("task", "model", "spearman"), rows)
    with publish_file(plots / "density.csv") as target:
        curves = [
            (name, *row)
            for name, result in results.items()
            if result.details is not None
            for row in density_rows(result.details.densities)
        ]
        write_csv(target, ("model", *DENSITY_COLUMNS), curves)


def headline(result: SuiteResults) -> dict[str, float]:
    """Return the average, if any, then one number per task, to fit ``dvc metrics show``.

    The record has the other ways of aggregating subsets.
    """
    scores: dict[str, float | None] = {}
    sts = result.sts
    if sts is not None:
        scores = {sts.average_name: sts.average()} if len(sts.tasks) > 1 else {}
        scores |= sts.figures
    if result.cxc is not None:
        scores |= {"CxC-STS": result.cxc.values["mean"]}
    if result.transfer is not None:
        if len(result.transfer.tasks) > 1:
            scores |= {f"{result.transfer.average_name} (accuracy)": result.transfer.average()}
        scores |= {f"{name} (accuracy)": value for name, value in result.transfer.figures.items()}
    if result.retrieval is not None:
        scores |= result.retrieval.values
    if result.space is not None:
        scores |= result.space.values
    scores |= {f"{name} ({score.main})": score.values[score.main] for name, score in result.tasks.items()}
    return {name: value for name, value in scores.items() if value is not None}


if __name__ == "__main__":
    run_stage(evaluate_stage)
