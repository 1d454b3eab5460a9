"""What ``prepare`` does with a user's own tasks: read them and name them in its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cse.data.readers import find_data_file
from cse.data.tables import TABLES, open_table
from cse.data.tasks.kinds import SCORED, Task, all_texts, describe, kind_of
from cse.data.tasks.layout import COLUMNS, is_beir, names_of, splits_of
from cse.data.tasks.read import read_task, read_tasks
from cse.settings.groups.data import DataSettings

_DEV = "data.dev_path"


def read_dev_task(path: Path | None, settings: DataSettings) -> Task | None:
    """Read a task that selects checkpoints, other than scored pairs; None for those, and without a path.

    A file with the columns of scored pairs counts as such, whatever else it has.

    Raises:
        CseError: anything wrong with the task.
    """
    if path is None:
        return None
    if not path.is_dir() or not (is_beir(path) or splits_of(path)):
        path = find_data_file(path, _DEV)
        columns = open_table(path, settings.encoding).columns if path.suffix.lower() in TABLES else []
        if names_of(SCORED, columns) or not any(names_of(kind, columns) for kind in COLUMNS):
            return None  # read as scored pairs
    task = read_task(path, **_how(settings), setting=_DEV)
    return None if kind_of(task) == SCORED else task


def read_own_tasks(path: Path | None, settings: DataSettings) -> list[Task]:
    """Read the tasks at ``data.task_path``; none without a path.

    Raises:
        CseError: anything wrong with a task.
    """
    if path is None:
        return []
    return read_tasks(path, **_how(settings), setting="data.task_path")


def task_in_report(task: Task) -> dict[str, Any]:
    """Return kind, description and counts of a task."""
    return {
        "kind": kind_of(task),
        "description": describe(task),
        "items": len(task),
        "texts": sum(1 for _ in all_texts(task)),
    }


def _how(settings: DataSettings) -> dict[str, Any]:
    """Return how to read tasks: labelled ones have the columns of the labelled rows to train on."""
    labelled = settings.columns if settings.view == "categories" else None
    return {"encoding": settings.encoding, "score_range": tuple(settings.score_range), "labelled": labelled}
