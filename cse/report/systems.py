"""Systems: records that differ only in their seed are runs of one system, shown as mean and standard deviation."""

from __future__ import annotations

import copy
import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from cse.errors import CseError
from cse.evaluation.dev_facts import dev_keys
from cse.evaluation.record import RECORD_FILE, Record, read_record, trained_on

# facts that differ between runs of a system
_OF_A_RUN = (*dev_keys(), "steps", "best_step", "environment")
_SUPERVISION = {"sentences": "unsupervised", "pairs": "supervised", "triplets": "supervised", "labelled": "supervised"}


@dataclass(frozen=True)
class Spread:
    """A figure over the runs of a system that have it."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class System:
    """Runs of one system, one record per seed."""

    name: str
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """The run used for figures of cosines and sentences."""
        return self.records[0]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the training by group; empty if not known."""
        return dict(self.first.model.get("facts", {}).get("settings", {}))

    @property
    def trained(self) -> bool:
        """Whether anything was trained, as far as known."""
        return self.first.model["kind"] != "backbone" and self.settings.get("train", {}).get("parameters") != "none"

    @property
    def fitted(self) -> str:
        """The kind of post-processing that was fitted behind it; empty if there is none, as far as known."""
        return str((self.first.model.get("post") or {}).get("kind", ""))

    @property
    def bare(self) -> bool:
        """Whether it is a backbone alone: neither trained nor with post-processing, as far as known."""
        return not self.trained and not self.fitted

    @property
    def backbone(self) -> str:
        """The backbone's name without its folder."""
        return Path(str(self.first.model.get("backbone", {}).get("name") or "unknown")).name

    @property
    def reads(self) -> dict[str, Any]:
        """Maximum length and task texts, as far as recorded."""
        return dict(self.first.scores.get("reads", {}))

    @property
    def data(self) -> str:
        """The rows that it was trained or fitted on, in a few words."""
        rows = trained_on(self.first.model) or "training data not recorded"
        if self.trained:
            return rows
        return f"{self.fitted} fitted on {rows}" if self.fitted else "no training"

    @property
    def setting(self) -> str:
        """``unsupervised``, ``supervised`` or ``no training``, like the papers' tables."""
        view = self.first.model.get("facts", {}).get("data", {}).get("view")
        return _SUPERVISION.get(view, "not recorded") if self.trained else "no training"

    @property
    def runs(self) -> str:
        """The number of runs behind the scores, in words."""
        if not self.trained:
            return "no seed"
        return f"{len(self.records)} seed{'s' if len(self.records) > 1 else ''}"

    def spread(self, figure: Callable[[Record], float | None]) -> Spread | None:
        """Return a score over the runs that have it, or None."""
        values = tuple(value for value in map(figure, self.records) if value is not None)
        return Spread(values) if values else None


def number_at(*path: str) -> Callable[[Record], float | None]:
    """Return a function that reads a number from a record's scores, see ``SuiteResults.to_dict``; None if missing."""
    return lambda record: number_in(record.scores, *path)


def number_in(tree: Any, *path: str) -> float | None:
    """Return the number at a path of nested mappings; None if it is missing."""
    for name in path:
        if not isinstance(tree, dict) or name not in tree:
            return None
        tree = tree[name]
    return tree if isinstance(tree, int | float) else None


def find_records(paths: Iterable[Path]) -> list[Record]:
    """Read the records in folders, searching subfolders too."""
    found: list[Record] = []
    for path in paths:
        folders = sorted(file.parent for file in path.rglob(RECORD_FILE)) if path.is_dir() else []
        if not folders:
            raise CseError(f"{path}: no records in it; create one with `cse evaluate MODEL --suite full --out {path}`")
        found += [read_record(folder) for folder in folders]
    return found


def group(records: Sequence[Record]) -> list[System]:
    """Group records into systems, in the order of the records."""
    runs: dict[str, list[Record]] = {}
    for number, record in enumerate(records):
        runs.setdefault(_identity(record, number), []).append(record)
    systems: list[System] = []
    for members in runs.values():
        name = _common_name([record.name for record in members])
        taken = [system.name for system in systems]
        unique = next(n for n in (name, *(f"{name} ({i})" for i in range(2, len(runs) + 2))) if n not in taken)
        systems.append(System(unique, tuple(_one_a_seed(members))))
    return sorted(systems, key=lambda system: system.trained)  # untrained systems first


def _identity(record: Record, number: int) -> str:
    """Return a key shared by the runs of a system; a record without settings stands alone."""
    facts = copy.deepcopy(record.model.get("facts", {}))
    if not facts.get("settings"):
        return f"record {number}"
    facts["settings"].get("train", {}).pop("seed", None)
    kept = {name: value for name, value in facts.items() if name not in _OF_A_RUN}
    return json.dumps({**record.model, "facts": kept}, sort_keys=True)


def _one_a_seed(records: list[Record]) -> list[Record]:
    by_seed: dict[Any, Record] = {}
    for record in records:
        by_seed.setdefault(_seed(record), record)
    return list(by_seed.values())


def _seed(record: Record) -> Any:
    return record.model.get("facts", {}).get("settings", {}).get("train", {}).get("seed")


def _common_name(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = "".join(letters[0] for letters in same)
    return re.sub(r"[\s(_=/-]*(seed)?[\s=-]*\d*$", "", shared).rpartition("/")[2] or names[0]
