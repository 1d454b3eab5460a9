"""Presets, the settings of published systems (``presets.yaml``), and what the papers printed (``published.csv``).

``published.csv`` has one record for each figure in the tables of PromCSE, DCPCSE and D2CSE: ``paper, table, setting,
model, backbone, metric, dataset, value, source_marker`` and, if needed, ``note``. Values are as printed: correlations
and accuracies times 100, hyperparameters in their own units.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cse.errors import CseError, nearest
from cse.settings.document import read_values, write_values
from cse.settings.load import PARAMS_FILE, Settings, flatten, packaged

# These groups make up the system. Keys in them that a preset does not set are reset to their defaults ...
SYSTEM_GROUPS = ("backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train")
# ... except those that describe the machine: no preset sets them, and `preset use` leaves them alone.
_OF_THE_MACHINE = ("device", "precision", "workers", "mini_batch_size", "row_groups", "save_seconds")
MACHINE_KEYS = tuple(f"train.{key}" for key in _OF_THE_MACHINE)
# The one data key that belongs to the system: it decides what the loss compares.
VIEW = "data.view"

HYPERPARAMETER = "hyperparameter"
TRANSFER = "accuracy"
_OVER_SEVEN = "Avg."
# the heading of D2CSE's table 4 says STS-B, but the values are averages over the seven tasks
AVERAGES = (_OVER_SEVEN, "Avg. STS (7 tasks)", 'column headed "Avg. STS-B" (values are the 7-task averages)')
_ROUNDING = 0.005 + 1e-9  # printed averages have two decimals


@dataclass(frozen=True)
class RowSelector:
    """One row of a paper's table, as identified in ``published.csv``."""

    paper: str
    table: int
    setting: str
    model: str
    backbone: str


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


@dataclass(frozen=True)
class Preset:
    """A published system; ``presets.yaml`` says what each field holds."""

    name: str
    description: str
    source: str
    expect: str
    notes: str
    rows: tuple[RowSelector, ...]
    settings: Mapping[str, Any]

    @property
    def data(self) -> str:
        """Short description of its training text."""
        source = self.settings.get("data.source")
        if source is None:
            return f"yours ({VIEW}: {self.settings[VIEW]})"
        found = data_in_words(self.settings)
        return f"{found}; duplicates and rows that occur in the evaluation data are kept, as in the published run"


def preset_names() -> list[str]:
    """Return the names of all presets, in file order."""
    return list(_presets())


def load_preset(name: str) -> Preset:
    """Return a preset; raise ``CseError`` with the nearest name if it does not exist."""
    try:
        return _presets()[name]
    except KeyError:
        raise CseError(f"{name}: no such preset{nearest(name, _presets())}; `cse preset list` names all") from None


def quoted_rows() -> Mapping[RowSelector, str]:
    """Return the rows that no preset reproduces, with the reason for each."""
    return _reasons("quoted")


def data_in_words(values: Mapping[str, Any]) -> str:
    """Describe where training rows come from, given the values of group ``data`` (dotted keys)."""
    match values["data.source"]:
        case "sample":
            return "the sample text"
        case "hub":
            return f"{values['data.hub_id']}/{values['data.hub_file']} from the hub"
        case _:
            return f"the file in {values.get('data.train_path', 'data.train_path')}"


def apply_preset(
    name: str, params_path: Path | str = PARAMS_FILE, *, keep_data: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Write a preset into a settings file, keeping comments, order and all keys outside the system.

    Keys of the system (``SYSTEM_GROUPS``) that the preset does not set are reset to their defaults, except
    ``MACHINE_KEYS``. Presets of papers also select the paper's training data. A missing file is created with the
    common keys and a comment for each. The result is checked first, and the file is replaced atomically.

    Args:
        keep_data: keep the user's group ``data``, whatever the preset sets there. ``data.view`` is the preset's, unless
            the user's rows are made from documents or categories.

    Returns:
        What changed: ``{"train.epochs": (1, 3)}``. The old value of a key missing from the file is its default.
    """
    path = Path(params_path)
    _, present = read_values(path)
    values = preset_values(name, present.get(VIEW), keep_data=keep_data)
    return write_values(path, values, where=f"{path.name} with preset {name!r}")


def preset_values(name: str, view: Any, *, keep_data: bool) -> dict[str, Any]:
    """Return the values of a preset by dotted key, defaults for what it leaves open of the system."""
    preset = load_preset(name).settings
    chosen = {
        key: value for key, value in preset.items() if not keep_data or key == VIEW or not key.startswith("data.")
    }
    if keep_data and view in ("documents", "categories"):  # another view could not read that source
        chosen.pop(VIEW, None)
    defaults = flatten(Settings().model_dump())
    system = [key for key in defaults if key.split(".")[0] in SYSTEM_GROUPS and key not in MACHINE_KEYS]
    return {key: chosen.get(key, default) for key, default in defaults.items() if key in chosen or key in system}


@cache
def _presets() -> Mapping[str, Preset]:
    presets = {}
    for name, entry in packaged("presets.yaml")["presets"].items():
        rows = tuple(_selectors(entry.get("rows", ())))
        values = MappingProxyType(flatten(entry["settings"]))
        presets[name] = Preset(name=name, **{"expect": "", "notes": "", **entry, "rows": rows, "settings": values})
    return MappingProxyType(presets)


def _selectors(entries: Iterable[Mapping[str, Any]]) -> Iterator[RowSelector]:
    """Yield one selector for each table of each entry."""
    for entry in entries:
        for table in entry["table"]:
            yield RowSelector(**{**entry, "table": table})


def records() -> list[dict[str, Any]]:
    """Return every figure as recorded in ``published.csv``."""
    rows = csv.DictReader(files("cse.settings").joinpath("published.csv").read_text("utf-8").splitlines())
    return [{name: text for name, text in row.items() if text} | {"value": json.loads(row["value"])} for row in rows]


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
    return _reasons("misprinted").get(row.selector, "")


@cache
def _reasons(part: str) -> Mapping[RowSelector, str]:
    """Return the reason for each row in a part of ``presets.yaml``."""
    return MappingProxyType(
        {row: entry["reason"] for entry in packaged("presets.yaml")[part] for row in _selectors(entry["rows"])}
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
