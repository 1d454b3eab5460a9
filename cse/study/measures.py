"""What a study measures: a dev part of everything, which chooses, and a test part, which nobody looks at before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cse.data.cxc import read_cxc
from cse.data.store import PreparedData
from cse.data.suite import SuiteData, open_suite
from cse.data.tasks.kinds import (
    CaptionPairs,
    ScoredPairs,
    Task,
)
from cse.data.tasks.parts import dev_part, part_for_test
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.errors import CseError

DEV, STS, CXC = "dev", "STS", "CxC"  # names of columns
CXC_DEV = "cxc_sts_val.csv"


def dev_suite(data: PreparedData, captions: Path) -> SuiteData:
    """Return what chooses: the task that selects checkpoints, CxC's validation captions, the dev parts of own tasks."""
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
