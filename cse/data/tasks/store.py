"""Store a user's own tasks as an Arrow file next to the prepared rows, in one table for all kinds.

=========== ============= ================ ============= ============ ============ ==================
kind        part          text             second        third        label        score
=========== ============= ================ ============= ============ ============ ==================
scored      pair          first text       second text                subset       gold score
binary      pair          first text       second text                             0 or 1
triplets    triplet       anchor           positive      negative
retrieval   query         text                                                     own document
retrieval   document      text
retrieval   judgement     place of query   of document                             grade
labelled    reference     text                                        label
labelled    test          text                                        label
=========== ============= ================ ============= ============ ============ ==================

A row of the part ``fact`` holds the name of a field in ``label`` and its value in ``text``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cse.data.scored import ScoredPairs
from cse.data.store import PreparedData, read_table, write_table
from cse.data.tasks.kinds import (
    BINARY,
    RETRIEVAL,
    SCORED,
    TRIPLETS,
    BinaryPairs,
    LabelledTexts,
    Retrieval,
    Task,
    Triplets,
    kind_of,
)  # fmt: skip

OWN_TASKS_FILE, DEV_TASK_FILE = "tasks.arrow", "dev-task.arrow"
_TEXTS = ("task", "kind", "part", "text", "second", "third", "label")
_SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXTS), ("score", pa.float64())])
_Cells = tuple[str | None, str | None, str | None, str | None, float | None]
_Columns = dict[str, list[list[Any]]]


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks; without any, write no file."""
    rows = [(task.name, kind_of(task), part, *cells) for task in tasks for part, cells in _rows(task)]
    if rows:
        write_table(path, _SCHEMA, rows)


def open_tasks(data: PreparedData) -> list[Task]:
    """Return the user's own tasks in prepared data, in the order of their names.

    Raises:
        CseError: a truncated file.
    """
    return _read(data.folder / OWN_TASKS_FILE)


def open_dev(data: PreparedData) -> Task | None:
    """Return what selects checkpoints: scored pairs or another task; None if nothing was prepared.

    Raises:
        CseError: a truncated file.
    """
    found = _read(data.folder / DEV_TASK_FILE)
    return found[0] if found else data.dev


def _read(path: Path) -> list[Task]:
    if not path.is_file():
        return []
    tasks = []
    for (name, kind), rows in groupby(read_table(path, _SCHEMA), key=lambda row: row[:2]):
        parts: _Columns = {}
        for part, group in groupby(rows, key=lambda row: row[2]):
            parts[part] = [list(column) for column in zip(*(row[3:] for row in group), strict=True)]
        tasks.append(_task(name, kind, parts))
    return tasks


def _rows(task: Task) -> Iterator[tuple[str, _Cells]]:
    if isinstance(task, ScoredPairs):
        for pair in zip(task.sentence1, task.sentence2, task.subset, task.score.tolist(), strict=True):
            yield "pair", (pair[0], pair[1], None, pair[2], pair[3])
    elif isinstance(task, BinaryPairs):
        for first, second, label in zip(task.sentence1, task.sentence2, task.label.tolist(), strict=True):
            yield "pair", (first, second, None, None, float(label))
    elif isinstance(task, Triplets):
        for anchor, positive, negative in zip(task.anchor, task.positive, task.negative, strict=True):
            yield "triplet", (anchor, positive, negative, None, None)
    elif isinstance(task, Retrieval):
        own = [None] * len(task) if task.own is None else task.own.astype(np.float64).tolist()
        yield from (("query", (text, None, None, None, place)) for text, place in zip(task.queries, own, strict=True))
        yield from (("document", (text, None, None, None, None)) for text in task.documents)
        for query, document, grade in zip(task.query, task.document, task.relevance, strict=True):
            yield "judgement", (str(query), str(document), None, None, float(grade))
        yield from _facts(judged_in=task.judged_in, left_out=task.left_out)
    else:
        for part, texts, labels in (
            ("reference", task.reference, task.reference_label),
            ("test", task.test, task.test_label),
        ):
            yield from ((part, (text, None, None, label, None)) for text, label in zip(texts, labels, strict=True))
        yield from _facts(split=task.split)


def _facts(**facts: Any) -> Iterator[tuple[str, _Cells]]:
    yield from (("fact", (str(value), None, None, name, None)) for name, value in facts.items())


def _task(name: str, kind: str, parts: _Columns) -> Task:
    facts = dict(zip(parts["fact"][3], parts["fact"][0], strict=True)) if "fact" in parts else {}
    if kind == SCORED:
        first, second, _, subset, score = parts["pair"]
        return ScoredPairs(name, first, second, np.array(score, np.float64), subset)
    if kind == BINARY:
        first, second, _, _, score = parts["pair"]
        return BinaryPairs(name, first, second, np.array(score) == 1)
    if kind == TRIPLETS:
        return Triplets(name, *parts["triplet"][:3])
    if kind == RETRIEVAL:
        query, document, _, _, grade = parts["judgement"]
        own = parts["query"][4]
        return Retrieval(
            name,
            parts["query"][0],
            parts["document"][0],
            query=np.array(query).astype(np.int64),
            document=np.array(document).astype(np.int64),
            relevance=np.array(grade).astype(np.int64),
            own=None if None in own else np.array(own).astype(np.int64),
            judged_in=facts["judged_in"],
            left_out=int(facts["left_out"]),
        )
    (reference, _, _, reference_label, _), (test, _, _, test_label, _) = parts["reference"], parts["test"]
    return LabelledTexts(name, reference, reference_label, test, test_label, facts["split"])
