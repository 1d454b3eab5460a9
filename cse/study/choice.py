"""Choose by dev scores; only then are the test sets opened."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import click

from cse.bench.ledger import Ledger, RunRecord
from cse.errors import CseError, nearest
from cse.study.run import Folders
from cse.study.table import RECORD, SettingRuns, lines_of, read_rows

CHOICES = "choices"


@dataclass(frozen=True)
class Choice:
    """Settings that were chosen, and what was known then.

    Attributes:
        blind: whether no test set had been opened before.
    """

    round: str
    settings: list[str]
    dev: dict[str, dict[str, float]]
    when: str
    blind: bool


def choose(folders: Folders, round_name: str, names: Sequence[str]) -> Choice:
    """Record a choice; the last one counts, and earlier ones stay on record."""
    lines = {line.setting: line for line in lines_of(read_rows(folders.folder, round_name)) if line.rows}
    for name in names:
        if name not in lines:
            raise CseError(f"setting {name}: not trained in round {round_name}{nearest(name, lines)}")
    dev = {name: _means(lines[name]) for name in names}
    made = Choice(round_name, list(names), dev, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", not _opened(folders))
    _ledger(folders).write(CHOICES, RunRecord({}, [asdict(each) for each in (*choices(folders), made)]))
    return made


def choices(folders: Folders) -> list[Choice]:
    """Return the choices that were recorded, the last one at the end."""
    record = _ledger(folders).read(CHOICES)
    return [] if record is None else [Choice(**each) for each in record.result]


def _ledger(folders: Folders) -> Ledger:
    return Ledger(folders.folder, "restore it, or delete it and choose again")


def say_choice(made: Choice) -> None:
    """Print what was chosen and whether it was blind."""
    blind = "no test set was open" if made.blind else "not blind, since a test set had been opened before"
    click.echo(f"{made.when} UTC, round {made.round}: {', '.join(made.settings)}; {blind}")


def _means(line: SettingRuns) -> dict[str, float]:
    return {name: round(statistics.fmean(line.over_seeds(name)), 3) for name in line.rows[0].dev}


def _opened(folders: Folders) -> bool:
    return any((folders.folder / "runs").glob(f"**/{RECORD}"))
