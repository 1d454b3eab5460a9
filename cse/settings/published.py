"""Published results: every figure in the tables of PromCSE, DCPCSE and D2CSE, and the presets that reproduce them.

``published.json`` next to this file has one record per figure: ``paper, table, setting, model, backbone, metric,
dataset, value, source_marker`` and, if needed, ``note``. Values are as printed: correlations and accuracies times 100,
hyperparameters in their own units.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML

from cse.settings.presets import RowSelector, load_preset, preset_names, quoted_rows

HYPERPARAMETER = "hyperparameter"
TRANSFER = "accuracy"
_OVER_SEVEN = "Avg."
# the heading of D2CSE's table 4 says STS-B, but the values are averages over the seven tasks
AVERAGES = (_OVER_SEVEN, "Avg. STS (7 tasks)", 'column headed "Avg. STS-B" (values are the 7-task averages)')
_ROUNDING = 0.005 + 1e-9  # printed averages have two decimals


@dataclass(frozen=True)
class PublishedScore:
    """One printed figure."""

    metric: str  # `spearman_x100`, or `hyperparameter`
    dataset: str  # or name of the hyperparameter
    value: float | bool
    source: str  # the mark in the table and whose measurement it denotes
    note: str

    @property
    def is_average(self) -> bool:
        """Whether this is the printed average over a row's tasks."""
        return self.dataset in AVERAGES


@dataclass(frozen=True)
class PaperRow:
    """One row of a table with its figures, in table order."""

    selector: RowSelector
    scores: tuple[PublishedScore, ...]

    @property
    def average(self) -> PublishedScore | None:
        """The printed average over the tasks, or None if the table has none."""
        return next((score for score in self.scores if score.is_average), None)

    @property
    def mean(self) -> float | None:
        """The mean of the scores behind the printed average, or None if they are not printed."""
        if self.average is None:
            return None
        parts = [s.value for s in self.scores if s.metric == self.average.metric and not s.is_average]
        return sum(parts) / len(parts) if self.average.dataset == _OVER_SEVEN else None

    @property
    def misprinted(self) -> bool:
        """Whether the printed average differs from the mean of the printed scores by more than rounding."""
        if self.average is None or self.mean is None:
            return False
        return abs(self.mean - self.average.value) > _ROUNDING


def records() -> list[dict[str, Any]]:
    """Return every figure as recorded in ``published.json``."""
    found: list[dict[str, Any]] = json.loads(files("cse.settings").joinpath("published.json").read_text("utf-8"))
    return found


def rows() -> tuple[PaperRow, ...]:
    """Return every row of every table, including hyperparameter tables, ordered by paper and table."""
    return tuple(_rows().values())


def rows_of(preset: str) -> tuple[PaperRow, ...]:
    """Return the rows that a preset reproduces, best known first."""
    return tuple(_rows()[selector] for selector in load_preset(preset).rows)


def coverage() -> list[tuple[PaperRow, tuple[str, ...], str]]:
    """Return each row with the presets that reproduce it, or the reason why none does."""
    quoted = quoted_rows()
    presets: dict[RowSelector, list[str]] = {}
    for name in preset_names():
        for selector in load_preset(name).rows:
            presets.setdefault(selector, []).append(name)
    return [(row, tuple(presets.get(selector, ())), quoted.get(selector, "")) for selector, row in _rows().items()]


def why_misprinted(row: PaperRow) -> str:
    """Return the known explanation of a misprinted average, or an empty string."""
    return _misprints().get(row.selector, "")


@cache
def _misprints() -> Mapping[RowSelector, str]:
    entries = YAML(typ="safe", pure=True).load(files("cse.settings").joinpath("misprints.yaml").read_text("utf-8"))
    return MappingProxyType(
        {
            RowSelector(*(entry[name] for name in ("paper", "table", "setting", "model", "backbone"))): entry["why"]
            for entry in entries
        }
    )


@cache
def _rows() -> Mapping[RowSelector, PaperRow]:
    scores: dict[RowSelector, list[PublishedScore]] = {}
    for record in records():
        table = int(record["table"].removeprefix("Table "))
        selector = RowSelector(record["paper"], table, record["setting"], record["model"], record["backbone"])
        scores.setdefault(selector, []).append(
            PublishedScore(
                metric=record["metric"],
                dataset=record["dataset"],
                value=record["value"],
                source=record["source_marker"],
                note=record.get("note", ""),
            )
        )
    return MappingProxyType({selector: PaperRow(selector, tuple(found)) for selector, found in scores.items()})
