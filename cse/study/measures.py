"""What a study measures: a dev part of everything, which chooses, and a test part, which nobody looks at before."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cse.data.clean import text_key
from cse.data.cxc import read_cxc
from cse.data.draws import LEAST, draw_parts
from cse.data.store import PreparedData
from cse.data.suite import SuiteData, open_suite
from cse.data.tasks.kinds import (
    HELD_OUT,
    CaptionPairs,
    LabelledTexts,
    Retrieval,
    ScoredPairs,
    Task,
    held_out_texts,
)
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.errors import CseError

DEV, STS, CXC = "dev", "STS", "CxC"  # names of columns
CXC_DEV = "cxc_sts_val.csv"
_DEV_LABELLED = 0.2  # share of a task's reference texts that are its dev part
_SEED = "cse study"


def dev_part(task: Task) -> Task:
    """Return the part of a task that chooses.

    Labelled texts give a share of their reference texts, drawn by a hash, none of them a test text in another case or
    punctuation; where the reference texts are the training rows, half of the test texts. Of a search about half of the
    queries, of pairs and triplets about half: those that share a text stay together. If that binds most of them to each
    other, as negatives drawn from a pool do, those that share the first text stay together.

    Raises:
        CseError: too few texts for two parts.
    """
    if not isinstance(task, LabelledTexts):
        return _part(task, [place for place, drawn in enumerate(_halved(task)) if drawn])
    if task.split == HELD_OUT:
        return _of_test(task, _drawn_texts(task.name, task.test, 0.5), inside=True)
    drawn = _drawn_texts(task.name, task.reference, _DEV_LABELLED) - {text_key(text) for text in task.test}
    rows = [
        (text_key(text) in drawn, text, label) for text, label in zip(task.reference, task.reference_label, strict=True)
    ]
    (reference, reference_label), (test, test_label) = (
        ([text for dev, text, _ in rows if dev is which], [label for dev, _, label in rows if dev is which])
        for which in (False, True)
    )
    return LabelledTexts(task.name, reference, reference_label, test, test_label, task.split)


def part_for_test(task: Task) -> Task:
    """Return the part of a task that no choice has seen: all of labelled texts' test rows, else the other half."""
    if isinstance(task, LabelledTexts):
        held_out = task.split == HELD_OUT
        return _of_test(task, _drawn_texts(task.name, task.test, 0.5), inside=False) if held_out else task
    return _part(task, [place for place, drawn in enumerate(_halved(task)) if not drawn])


def apart(task: Task) -> Iterator[str]:
    """Yield the texts of a task that no training row of a study may hold: those of the test and of the dev part."""
    yield from held_out_texts(task)
    if isinstance(task, LabelledTexts):
        yield from held_out_texts(dev_part(task))


def dev_suite(data: PreparedData, captions: Path) -> SuiteData:
    """Return what chooses: the task that selects checkpoints, CxC's validation captions, the dev parts of own tasks.

    Args:
        data: prepared data.
        captions: folder that may hold ``cxc_sts_val.csv``.

    Raises:
        CseError: nothing selects checkpoints, or a task is too small for two parts.
    """
    dev = open_dev(data)
    if dev is None:
        raise CseError(
            "a study needs dev pairs or a dev task: set data.dev_path, or data.evaluation_path to SentEval's folder"
        )
    cxc = [read_cxc(captions / CXC_DEV)] if (captions / CXC_DEV).is_file() else []
    return SuiteData([*cxc], [dataclasses.replace(dev, name=DEV), *map(dev_part, open_tasks(data, OWN))])


def suite_for_test(data: PreparedData) -> SuiteData:
    """Return what is tested: similarity tasks, CxC-STS, the test parts of own tasks."""
    suite = open_suite(data)
    test: list[Task] = [task for task in suite.test if isinstance(task, ScoredPairs | CaptionPairs)]
    return dataclasses.replace(suite, test=test, own=[part_for_test(task) for task in suite.own])


def columns(results: Mapping[str, Any], dev_measure: str = "") -> dict[str, float]:
    """Return the figures of a table by column.

    Args:
        results: of an evaluation (``SuiteResults.to_dict``).
        dev_measure: measure of the dev task that selects checkpoints; empty: its main measure.
    """
    found: dict[str, float] = {}
    averages = [
        name for name in results if name.startswith(("Avg.", "mean of "))
    ]  # one, if anything similar was scored
    if averages and "all" in results[averages[0]]:
        found[STS] = float(results[averages[0]]["all"])
    tasks = dict(results.get("tasks", {}))
    if DEV in tasks:
        dev = tasks.pop(DEV)
        found[DEV] = float(dev["values"][dev_measure or dev["main"]])
    if results.get("cxc"):
        found[CXC] = float(results["cxc"]["all_pairs"])
    for name, task in tasks.items():
        found[f"{name} {task['main']}"] = float(task["values"][task["main"]])
        if "MAP" in task["values"] and task["kind"] == "labelled texts":
            found[f"{name} MAP"] = float(task["values"]["MAP"])
    return found


def gained(figures: Mapping[str, float], bare: Mapping[str, float]) -> float:
    """Return how far the dev score rose over the bare backbone's, in points."""
    return figures[DEV] - bare[DEV]


def kept(figures: Mapping[str, float], bare: Mapping[str, float]) -> float | None:
    """Return the mean difference to the bare backbone over the main measures of the user's tasks, in points; None
    without tasks.
    """
    by_task: dict[str, str] = {}
    for name in bare:
        if name not in (DEV, CXC):
            by_task.setdefault(name.rpartition(" ")[0], name)  # a task's main measure comes first
    own = list(by_task.values())
    return float(np.mean([figures[name] - bare[name] for name in own])) if own else None


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
            if min(halves.count(True), halves.count(False)) >= LEAST:
                return halves
    raise _too_few(task.name, len(rows))


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


def _drawn_texts(name: str, texts: Sequence[str], share: float) -> set[bytes]:
    """Return the keys of a share of the texts."""
    drawn: dict[bytes, int] = {}
    draw_parts(Counter(map(text_key, texts)), f"{_SEED} {name}", share, 1, drawn)
    if not drawn:
        raise _too_few(name, len(texts))
    return set(drawn)


def _of_test(task: LabelledTexts, keys: set[bytes], *, inside: bool) -> LabelledTexts:
    """Return a task with those of its test texts whose keys are in a set, or are not."""
    rows = [row for row in zip(task.test, task.test_label, strict=True) if (text_key(row[0]) in keys) is inside]
    return dataclasses.replace(task, test=[text for text, _ in rows], test_label=[label for _, label in rows])


def _too_few(name: str, count: int) -> CseError:
    return CseError(f"task {name}: {count} rows are too few for a dev and a test part")


def _part(task: Any, places: list[int]) -> Any:
    if isinstance(task, Retrieval):
        place_of = {place: number for number, place in enumerate(places)}
        here = np.array([int(query) in place_of for query in task.query])
        return dataclasses.replace(
            task,
            queries=[task.queries[place] for place in places],
            query=np.array([place_of[int(query)] for query in task.query[here]], np.int64),
            document=task.document[here],
            relevance=task.relevance[here],
            own=None if task.own is None else task.own[np.array(places)],
        )
    columns = {field.name: getattr(task, field.name) for field in dataclasses.fields(task) if field.name != "name"}
    halves = {
        name: values[np.array(places)] if isinstance(values, np.ndarray) else [values[place] for place in places]
        for name, values in columns.items()
        if isinstance(values, (list, np.ndarray))
    }
    return dataclasses.replace(task, **halves)
