"""What can be said of a training's rows before it starts: rows that do not fit the loss are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

import click

from cse.data.store import GROUP, PreparedData
from cse.errors import CseError
from cse.settings import Settings
from cse.settings.objective import ObjectiveSettings
from cse.settings.train import TrainSettings
from cse.stages.sources import TrainingSource
from cse.training.batches import most_frequent
from cse.training.tokens import TokenTable


def check_sources(settings: Settings, sources: Sequence[TrainingSource]) -> None:
    """Refuse rows that were prepared for another objective, or too few."""
    main, *more = sources
    _check_view(main.data, main.objective, settings.train)
    _check_rows(str(main.data.folder), main, settings.train)
    for source, wanted in zip(more, settings.data.more, strict=False):
        view = settings.data.of(wanted).rows
        if source.data.view != view:
            raise CseError(
                f"{source.key}: {source.data.rows_file} contains {source.data.view}, not {view}; run `cse prepare`"
            )
        _check_rows(source.key, source, settings.train)


def _check_view(data: PreparedData, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Refuse rows prepared for another objective: ``cse train -s`` may override the settings of ``prepare``."""
    for name, term in objective.terms().items():
        unlabelled = term.labels and GROUP not in data.train.column_names
        if train.parameters != "none" and (data.view not in term.views or unlabelled):
            views = "categories" if term.labels else " or ".join(term.views)
            raise CseError(
                f"{data.folder}: contains {data.view}, but objective.{name} needs {term.rows}: set its weight to 0 "
                f"(-s objective.{name}.weight=0), or run `cse prepare` with data.view: {views}"
            )


def _check_rows(where: str, source: TrainingSource, train: TrainSettings) -> None:
    """Refuse too few rows to provide negatives: the loss would always be 0."""
    rows, objective = len(source.data.train), source.objective
    if train.parameters != "none" and rows < objective.least_rows:
        raise CseError(
            f"{where}: contains {counted(rows, 'row')}, but objective."
            f"{objective.comparing[0]} uses other rows as negatives; prepare at least {objective.least_rows}"
        )


def check_early_stop(objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Refuse to stop by a dev score that says nothing about the loss."""
    if train.early_stop is not None and train.parameters != "none" and not objective.comparing:
        raise CseError(
            f"train.early_stop: objective.{objective.first} compares no sentences, so the dev score cannot stop "
            "this training; set it to null"
        )


def say_small(table: TokenTable, batch_size: int, what: str = "an epoch") -> None:
    """Say so if rows that may not meet make batches of ``what`` much smaller than asked for."""
    if table.keys is None:
        return
    most, usual = most_frequent(table.keys), math.ceil(len(table) / batch_size)
    if most > usual:
        click.echo(
            f"train.distinct_batches: {most:,} rows have the same label, document or text, so {what} has at least "
            f"{most:,} batches of about {len(table) / most:.0f} rows, not {usual:,} of {batch_size}",
            err=True,
        )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
