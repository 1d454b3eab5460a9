"""What the prepared data of an adaptation hold to choose by, and to measure."""

from __future__ import annotations

from cse.data.store import PreparedData
from cse.data.tasks.kinds import kind_of
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.evaluation.tasks.score import MEASURES
from cse.settings import Settings


def selects(data: PreparedData, settings: Settings) -> bool:
    """Return whether a dev score tells good weights of these settings from bad ones."""
    comparing = bool(settings.objective.over(settings.data.more_terms).comparing)
    return comparing and open_dev(data) is not None


def main_measure(data: PreparedData) -> tuple[str, str] | None:
    """Return the user's first task and its main measure; None without a task."""
    tasks = open_tasks(data, OWN)
    return (tasks[0].name, MEASURES[kind_of(tasks[0])][0]) if tasks else None
