"""Tables of task scores, one per task."""

from __future__ import annotations

from collections.abc import Mapping

from cse.errors import one_line
from cse.evaluation.tasks.score import TaskScore

_Part = tuple[str, list[list[str]], str]


def task_parts(models: Mapping[str, Mapping[str, TaskScore]]) -> list[_Part]:
    """Return title, rows and setting of each task's table: a row per model, a column per measure.

    Args:
        models: scores by task, by display name of the model.
    """
    parts = []
    for task in dict.fromkeys(task for scores in models.values() for task in scores):
        scored = {name: scores[task] for name, scores in models.items() if task in scores}
        first = next(iter(scored.values()))
        setting = settings_in_words({name: score.setting for name, score in scored.items()})
        rows = [[name, *(f"{value:.2f}" for value in score.values.values())] for name, score in scored.items()]
        parts.append((one_line(task), [["model", *first.values], *rows], f"times 100; {setting}"))
    return parts


def settings_in_words(settings: Mapping[str, str]) -> str:
    """Return how several models were measured: parts that they share, then what is a model's own."""
    split = {name: setting.split("; ") for name, setting in settings.items()}
    shared = [part for part in next(iter(split.values())) if all(part in parts for parts in split.values())]
    rest = {name: ", ".join(part for part in parts if part not in shared) for name, parts in split.items()}
    own = [f"{name}: {said or 'no task texts'}" for name, said in rest.items()] if any(rest.values()) else []
    return "; ".join([*shared, *own])
