"""A part of a task that chooses first, and the rest, which that choice has not seen."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from cse.data.clean import text_key
from cse.data.hold_out import LEAST, draw_parts
from cse.data.tasks.kinds import LabelledTexts, Retrieval, Task
from cse.errors import CseError

_Value = TypeVar("_Value")
_SEED = "cse study"  # of hashes: another word would draw other parts


def dev_part(task: Task) -> Task:
    """Return the part of a task that chooses first, about half of its rows, drawn by a hash of their texts.

    Of labelled texts half of the test texts of each label, or all of one with less than four. Of a search about half of
    the queries, of pairs and triplets about half: what shares a text stays together. If that binds most of them to each
    other, as negatives drawn from a pool do, those that share the first text stay together.
    """
    return _half(task, drawn=True)


def part_for_test(task: Task) -> Task:
    """Return the other half of a task."""
    return _half(task, drawn=False)


def _half(task: Any, *, drawn: bool) -> Any:
    halves = _halved_by_label(task) if isinstance(task, LabelledTexts) else _halved(task)
    return _part(task, [place for place, half in enumerate(halves) if half is drawn])


def _part(task: Any, places: Sequence[int]) -> Any:
    """Return the rows of a task in some places; of labelled texts, the test rows."""
    if isinstance(task, Retrieval):
        return task.only(places)
    columns = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    taken = ("test", "test_label") if isinstance(task, LabelledTexts) else columns
    kept = {
        name: values[np.array(places)] if isinstance(values, np.ndarray) else [values[place] for place in places]
        for name, values in columns.items()
        if isinstance(values, (list, np.ndarray)) and name in taken
    }
    return dataclasses.replace(task, **kept)


def sample_of(task: Task, texts: int) -> Task:
    """Return a part of a task with about so many texts, spread over all of it: the same one each time.

    Of labelled texts half are reference rows, spread over the labels; of a search a fifth are queries, and the
    documents that these look for are there.
    """
    if isinstance(task, LabelledTexts):
        by_label = sorted(range(len(task.reference)), key=task.reference_label.__getitem__)
        known, test = sorted(spread(by_label, texts // 2)), spread(range(len(task.test)), texts // 2)
        return dataclasses.replace(
            task,
            reference=[task.reference[row] for row in known],
            reference_label=[task.reference_label[row] for row in known],
            test=[task.test[row] for row in test],
            test_label=[task.test_label[row] for row in test],
        )
    if not isinstance(task, Retrieval):
        return _part(task, spread(range(len(task)), texts // 2))
    part = task.only(spread(range(len(task)), max(texts // 5, texts - len(task.documents))))
    wanted = {*part.document[part.relevance > 0].tolist(), *([] if part.own is None else part.own.tolist())} - {-1}
    others = [number for number in range(len(task.documents)) if number not in wanted]
    kept = sorted({*wanted, *spread(others, max(texts - len(part) - len(wanted), 1))})
    place = dict(zip(kept, range(len(kept)), strict=True)) | {-1: -1}
    rows = [row for row, document in enumerate(part.document.tolist()) if document in place]
    return dataclasses.replace(
        part,
        documents=[task.documents[number] for number in kept],
        query=part.query[rows],
        document=np.array([place[number] for number in part.document[rows].tolist()], np.int64),
        relevance=part.relevance[rows],
        own=None if part.own is None else np.array([place[number] for number in part.own.tolist()], np.int64),
    )


def spread(values: Sequence[_Value], count: int) -> list[_Value]:
    """Return up to ``count`` of some values, evenly spaced."""
    if not len(values):
        return []
    return [values[place] for place in sorted({*np.linspace(0, len(values) - 1, count).astype(int).tolist()})]


def _halved(task: Any) -> list[bool]:
    """Return whether each row of a task is in the half that chooses, drawn by a hash of the texts that bind it."""
    texts = [task.queries] if isinstance(task, Retrieval) else [getattr(task, name) for name in task.held_out]
    rows = [[text_key(text) for text in row] for row in zip(*texts, strict=True)]
    for bound in (rows, [row[:1] for row in rows]):
        groups = _bound(bound)
        sizes = Counter(groups)
        if max(sizes.values(), default=0) <= len(rows) / 2:
            drawn: dict[bytes, int] = {}
            draw_parts(sizes, f"{_SEED} {task.name}", 0.5, 1, drawn)
            halves = [group in drawn for group in groups]
            if _enough(halves):
                return halves
    raise _too_few(task)


def _bound(rows: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return for each row the first key of all those that it is bound to by rows with a key in common."""
    parent: dict[bytes, bytes] = {}

    def root(key: bytes) -> bytes:
        while parent.setdefault(key, key) != key:
            parent[key] = key = parent[parent[key]]
        return key

    for first, *others in rows:
        for other in others:
            low, high = sorted((root(first), root(other)))
            parent[high] = low
    return [root(row[0]) for row in rows]


def _halved_by_label(task: LabelledTexts) -> list[bool]:
    """Return whether each test text is in the half that chooses; a label with four texts or more is in both."""
    keys = [text_key(text) for text in task.test]
    by_label: dict[str, Counter[bytes]] = {}
    for key, label in zip(keys, task.test_label, strict=True):
        by_label.setdefault(label, Counter())[key] += 1
    salt, drawn, whole = f"{_SEED} {task.name}", dict[bytes, int](), dict[bytes, int]()
    for inside in by_label.values():
        if inside.total() >= 2 * LEAST:
            draw_parts(inside, salt, 0.5, 1, drawn)
    few = {label.encode(): each.total() for label, each in by_label.items() if each.total() < 2 * LEAST}
    draw_parts(few, salt, 0.5, 1, whole)
    chosen = {*drawn, *(key for label in whole for key in by_label[label.decode()])}
    halves = [key in chosen for key in keys]
    if not _enough(halves):
        raise _too_few(task)
    return halves


def _enough(halves: list[bool]) -> bool:
    return min(halves.count(True), halves.count(False)) >= LEAST


def _too_few(task: Task) -> CseError:
    return CseError(f"task {task.name}: {len(task)} rows are too few for a dev and a test part")
