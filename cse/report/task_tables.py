"""Tables of the user's own tasks: one per task, a row per system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cse.evaluation.record import Record
from cse.evaluation.table import settings_in_words
from cse.report.cells import Cell, Line, Table
from cse.report.systems import System
from cse.report.tables import spread_cell

_WORDS = ("system", "backbone", "data", "runs")


def task_tables(systems: Sequence[System]) -> list[Table]:
    """Return a table of every task that a system was measured on."""
    tasks = dict.fromkeys(task for system in systems for task in system.first.scores.get("tasks", {}))
    return [_table(number, task, systems) for number, task in enumerate(tasks, start=1)]


def _table(number: int, task: str, systems: Sequence[System]) -> Table:
    scored = [system for system in systems if task in system.first.scores.get("tasks", {})]
    first = _score(scored[0].first, task)
    lines = []
    for system in scored:
        words = map(Cell, (system.name, system.backbone, system.data, system.runs))
        spreads = (
            system.spread(lambda record, name=name: _score(record, task)["values"].get(name))  # type: ignore[misc]
            for name in first["values"]
        )
        lines.append(Line((*words, *(spread_cell(spread, 2, len(system.records)) for spread in spreads)), own=True))
    setting = settings_in_words({system.name: _score(system.first, task)["setting"] for system in scored})
    caption = f"Times 100; mean ± sample standard deviation over seeds. {setting}."
    return Table(f"task-{number}", f"Your task: {task}", caption, (*_WORDS, *first["values"]), 4, tuple(lines))


def _score(record: Record, task: str) -> dict[str, Any]:
    """Return a task's kind, setting and values in a record; no values where the record lacks the task."""
    found: dict[str, Any] = record.scores.get("tasks", {}).get(task, {"values": {}})
    return found
