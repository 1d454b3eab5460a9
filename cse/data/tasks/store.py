"""Store the tasks of prepared data in one Arrow file: one table for all kinds, with the role of each task.

The role ``dev`` selects checkpoints (one task at most), ``test`` is measured as in the papers, ``own`` are the user's
own tasks. Who opens one role sees no other.

A row holds one pair, triplet, text or judgement. ``_LAYOUT`` says which column holds which field of a task. A row of
the part ``fact`` holds the name of a field in ``label`` and its value in ``text``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cse.data.store import AGAIN, PreparedData, map_table, write_table
from cse.data.tasks import kinds
from cse.data.tasks.kinds import Labelled, Splits, Task, TransferTask, kind_of
from cse.errors import CseError

TASKS_FILE = "tasks.arrow"
DEV, TEST, OWN = "dev", "test", "own"
_TEXTS = ("text", "second", "third", "label")
_SCHEMA = pa.schema(
    [*((name, pa.string()) for name in ("role", "task", "kind", "part", *_TEXTS)), ("score", pa.float64())]
)
_PAIR = {"sentence1": "text", "sentence2": "second"}
# by class and part: the column of each field, and the type of one that is an array
_LAYOUT: dict[type, dict[str, dict[str, str]]] = {
    kinds.ScoredPairs: {"pair": _PAIR | {"subset": "label", "score": "score float64"}},
    kinds.BinaryPairs: {"pair": _PAIR | {"label": "score bool"}},
    kinds.Triplets: {"triplet": {"anchor": "text", "positive": "second", "negative": "third"}},
    kinds.Retrieval: {
        "query": {"queries": "text", "own": "score int64"},
        "document": {"documents": "text"},
        "judgement": {"query": "text int64", "document": "second int64", "relevance": "score int64"},
    },
    kinds.LabelledTexts: {
        "reference": {"reference": "text", "reference_label": "label"},
        "test": {"test": "text", "test_label": "label"},
    },
    Labelled: {
        part: {"texts": "text", "second": "second", "label": "score int64"} for part in ("train", "dev", "test")
    },
    kinds.CaptionPairs: {"pair": _PAIR | {"caption": "third int64", "image": "label int64", "score": "score float64"}},
}
_FACTS: dict[type, dict[str, type]] = {
    kinds.Retrieval: {"judged_in": str, "left_out": int, "unknown": int, "empty": int},
    kinds.LabelledTexts: {"split": str},
    kinds.BinaryPairs: {"left_out": int},
}
_Columns = dict[str, Any]  # lists by name, of equal length


def write_tasks(folder: Path, *, dev: Task | None = None, test: Iterable[Task] = (), own: Iterable[Task] = ()) -> None:
    """Write the tasks of a folder of prepared data, by role."""
    tasks = {DEV: () if dev is None else (dev,), TEST: test, OWN: own}
    rows = (
        (role, task.name, kind_of(task), part, *cells)
        for role, several in tasks.items()
        for task in several
        for part, columns in _parts(task)
        for cells in _rows(columns)
    )
    write_table(folder / TASKS_FILE, _SCHEMA, rows)


def open_tasks(data: PreparedData, role: str) -> list[Task]:
    """Return the tasks of a role in the order written; may be none."""
    path = data.folder / TASKS_FILE
    table = map_table(path)
    if table.schema.names != _SCHEMA.names:
        raise CseError(
            f"{path}: has columns {', '.join(table.column_names)}, expected {', '.join(_SCHEMA.names)}; {AGAIN}"
        )
    roles = table["role"].to_pylist()  # a role's rows stand together; a filter of Arrow's would import pandas
    table = table.slice(roles.index(role) if role in roles else 0, roles.count(role))
    rows = zip(*(column.to_pylist() for column in table.columns[1:]), strict=True)
    tasks = []
    for (name, kind), group in groupby(rows, key=lambda row: row[:2]):
        parts: dict[str, _Columns] = {}
        for part, cells in groupby(group, key=lambda row: row[2]):
            columns = zip(*(row[3:] for row in cells), strict=True)
            parts[part] = dict(zip(_SCHEMA.names[4:], map(list, columns), strict=True))
        tasks.append(_task(name, kind, parts))
    return tasks


def open_dev(data: PreparedData) -> Task | None:
    """Return the task that selects checkpoints, often scored pairs; None if nothing was prepared."""
    return next(iter(open_tasks(data, DEV)), None)


def _parts(task: Task) -> Iterator[tuple[str, _Columns]]:
    """Yield the name and the columns of each part of a task."""
    if isinstance(task, Splits):
        yield from ((split, _columns(pairs, "pair")) for split, pairs in task.splits.items())
    elif isinstance(task, TransferTask):
        parts = {part: getattr(task, part) for part in _LAYOUT[Labelled]}
        yield from ((part, _columns(rows, part)) for part, rows in parts.items() if rows is not None)
    else:
        yield from ((part, _columns(task, part)) for part in _LAYOUT[type(task)])
        facts = list(_FACTS.get(type(task), ()))
        yield "fact", {"text": [str(getattr(task, name)) for name in facts], "label": facts}


def _columns(holder: Any, part: str) -> _Columns:
    fields = {column.split()[0]: getattr(holder, field) for field, column in _LAYOUT[type(holder)][part].items()}
    return {column: values for column, values in fields.items() if values is not None}


def _rows(columns: _Columns) -> Iterator[tuple[Any, ...]]:
    texts = [map(str, columns[name]) if name in columns else [None] * len(columns["text"]) for name in _TEXTS]
    scores = map(float, columns["score"]) if "score" in columns else [None] * len(columns["text"])
    return zip(*texts, scores, strict=True)


def _task(name: str, kind: str, parts: dict[str, _Columns]) -> Task:
    made = next(made for made, known in kinds.KINDS.items() if known == kind)
    if made is Splits:
        splits = {part: _filled(kinds.ScoredPairs, {"pair": parts[part]}, name=f"{name} {part}") for part in parts}
        return Splits(name, splits)
    if made is TransferTask:
        return TransferTask(name, **{part: _filled(Labelled, {part: parts[part]}) for part in parts})
    facts = parts.pop("fact", {"label": [], "text": []})
    given = {field: _FACTS[made][field](text) for field, text in zip(facts["label"], facts["text"], strict=True)}
    return _filled(made, parts, name=name, **given)


def _filled(made: type, parts: dict[str, _Columns], **given: Any) -> Any:
    """Return a task, or a part of one, with its fields from columns; a field whose cells are empty is None."""
    fields = given
    for part, columns in parts.items():
        for field, column in _LAYOUT[made][part].items():
            name, _, kind = column.partition(" ")
            values = columns[name]
            fields[field] = None if values[0] is None else np.array(values).astype(kind) if kind else values
    return made(**fields)
