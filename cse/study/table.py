"""The table of a study, made anew from the records of its trainings each time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cse.bench.ledger import RUN, Ledger, RunRecord
from cse.files import write_csv
from cse.outputs import publish_file
from cse.study.measures import DEV, gained, kept
from cse.study.plan import BARE

TABLE_FILE = "table.csv"
RECORD = "record"  # folder of a training's test scores
Figures = Mapping[str, float]  # by column


@dataclass(frozen=True)
class RunRow:
    """A training that ended.

    Attributes:
        round: name of its round; empty for the bare backbone.
        settings: all settings that it depends on, by dotted key.
        dev: dev scores by column; empty if it failed.
        reason: why it failed; empty if it did not.
        trained: trained weights, in percent of the backbone's.
        snapshots: ``(step, dev scores)`` along the training.
    """

    setting: str
    seed: int
    round: str
    settings: Mapping[str, Any]
    dev: Figures = field(default_factory=dict)
    reason: str = ""
    trained: float = 0.0
    steps: int = 0
    best_step: int = 0
    seconds: float = 0.0
    snapshots: Sequence[tuple[int, Figures]] = ()

    @classmethod
    def of(cls, record: RunRecord) -> RunRow:
        """Return what a record says."""
        known = {key: record.of[key] for key in ("setting", "seed", "round")} | (record.result or {})
        return cls(**known, settings=record.of, reason=record.reason, seconds=record.seconds)


def read_rows(study: Path, round_name: str = "") -> list[RunRow]:
    """Return the rows of a round, or of all rounds without a name, the bare backbone's first."""
    runs = study / "runs"
    folders = [runs / BARE, *sorted(path.parent for path in runs.glob(f"{round_name or '*'}/*/{RUN}.json"))]
    records = [Ledger(folder).read(RUN) for folder in folders]
    return [RunRow.of(record) for record in records if record is not None]


@dataclass(frozen=True)
class SettingRuns:
    """The trainings of one setting in one round.

    Attributes:
        rows: one per seed, those that did not fail.
    """

    setting: str
    round: str
    rows: tuple[RunRow, ...]
    failed: tuple[str, ...]

    def over_seeds(self, column: str) -> list[float]:
        """Return a dev score of each seed."""
        return [row.dev[column] for row in self.rows]


def lines_of(rows: Iterable[RunRow]) -> list[SettingRuns]:
    """Return rows by round and setting, the best mean dev score first within a round, failed settings last."""
    found: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        if row.setting != BARE:
            found.setdefault((row.round, row.setting), []).append(row)
    lines = [
        SettingRuns(setting, name, tuple(r for r in own if not r.reason), tuple(r.reason for r in own if r.reason))
        for (name, setting), own in found.items()
    ]
    rounds = list(dict.fromkeys(line.round for line in lines))

    def place(line: SettingRuns) -> tuple[int, float]:
        return rounds.index(line.round), -statistics.fmean(line.over_seeds(DEV)) if line.rows else 0.0

    return sorted(lines, key=place)


def table(rows: Sequence[RunRow]) -> list[list[str]]:
    """Return the dev scores as a table of text with a header: the bare backbone, then a line per setting and round.

    Scores are means over seeds, with the sample standard deviation where there are several.
    """
    bare = next((row for row in rows if row.setting == BARE), None)
    columns = list(bare.dev) if bare is not None else list(dict.fromkeys(name for row in rows for name in row.dev))
    scores = [name if name == DEV else f"{name} dev" for name in columns]
    head = ["setting", "round", "seeds", *scores, "gained", "kept", "trained", "minutes"]
    body = []
    if bare is not None:
        body.append([BARE, "", "", *(f"{bare.dev[name]:.2f}" for name in columns), "", "", "", ""])
    for line in lines_of(rows):
        if not line.rows:
            body.append([line.setting, line.round, f"failed: {line.failed[0]}", *[""] * (len(columns) + 4)])
            continue
        cells = [spread(line.over_seeds(name)) for name in columns]
        change = ["", ""]
        if bare is not None and _same_backbone(line.rows[0], bare):
            gains = [gained(row.dev, bare.dev) for row in line.rows]
            keeps = [value for row in line.rows if (value := kept(row.dev, bare.dev)) is not None]
            change = [f"{statistics.fmean(gains):+.2f}", f"{statistics.fmean(keeps):+.2f}" if keeps else ""]
        seconds = statistics.fmean(row.seconds for row in line.rows)
        facts = [f"{line.rows[0].trained:.2f} %", f"{seconds / 60:.1f}"]
        body.append([line.setting, line.round, str(len(line.rows)), *cells, *change, *facts])
    return [head, *body]


def _same_backbone(row: RunRow, bare: RunRow) -> bool:
    """Return whether a training and the bare backbone used it alike; else a difference is not the training's alone."""
    one, other = (
        {key: value for key, value in each.settings.items() if key.startswith(("backbone.", "the backbone's"))}
        for each in (row, bare)
    )
    return one == other


def write_table(study: Path) -> None:
    """Write the table of all rounds as CSV."""
    head, *body = table(read_rows(study))
    with publish_file(study / TABLE_FILE) as target:
        write_csv(target, head, body)


def spread(values: Sequence[float]) -> str:
    """Return the mean, and the sample standard deviation of several values."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"
