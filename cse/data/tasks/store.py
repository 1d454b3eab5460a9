"""Store the tasks of prepared data as JSON, by role.

The role ``dev`` selects checkpoints (one task at most), ``test`` is measured as in the papers, ``own`` are the user's
own tasks. Who opens one role sees no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cse.artifact import read_object
from cse.data.store import AGAIN, PreparedData
from cse.data.tasks.kinds import KINDS, Labelled, Task
from cse.errors import CseError

TASKS_FILE = "tasks.json"
DEV, TEST, OWN = "dev", "test", "own"
_CLASSES = {made.__name__: made for made in (*KINDS, Labelled)}


def write_tasks(folder: Path, *, dev: Task | None = None, test: Iterable[Task] = (), own: Iterable[Task] = ()) -> None:
    """Write the tasks of a folder of prepared data, by role."""
    tasks = {DEV: [] if dev is None else [dev], TEST: [*test], OWN: [*own]}
    text = json.dumps(tasks, default=_tree, ensure_ascii=False)
    (folder / TASKS_FILE).write_text(text + "\n", encoding="utf-8", newline="\n")


def open_tasks(data: PreparedData, role: str) -> list[Task]:
    """Return the tasks of a role in the order written; may be none."""
    path = data.folder / TASKS_FILE
    if not path.is_file():
        raise CseError(f"{path}: no such file; {AGAIN}")
    tasks: list[Task] = _made(read_object(path, AGAIN)[role])
    return tasks


def open_dev(data: PreparedData) -> Task | None:
    """Return the task that selects checkpoints, often scored pairs; None if nothing was prepared."""
    return next(iter(open_tasks(data, DEV)), None)


def _tree(value: Any) -> dict[str, Any]:
    """Return the JSON object of a task, a part of one or an array, all but the names of labels."""
    if is_dataclass(value):
        told = {
            each.name: getattr(value, each.name) for each in fields(value) if each.name not in ("names", "measured")
        }
        return {"class": type(value).__name__, **told}
    return {"array": value.tolist(), "type": str(value.dtype)}


def _made(tree: Any) -> Any:
    """Return what ``_tree`` was given."""
    if isinstance(tree, list):
        return [_made(each) for each in tree] if tree and isinstance(tree[0], dict) else tree
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return np.array(tree["array"], tree["type"])
    parts = {name: _made(value) for name, value in tree.items()}
    return _CLASSES[parts.pop("class")](**parts) if "class" in parts else parts
