"""A grid of settings before the pipeline: every combination is trained, the best dev score wins.

The winner's training is in DVC's cache, so that the pipeline restores it instead of training again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from prefect import get_run_logger

from cse.errors import CseError
from cse.settings import PARAMS_FILE
from flows.artifacts import read_scores
from flows.parameters import write_settings
from flows.repository import stages_in_order
from flows.workspace import Workspace

_OBJECTIVE = "train"  # the stage that leaves the dev score


def run_sweep(place: Workspace, grid: Mapping[str, list[Any]], run: Callable[[str], None]) -> dict[str, Any]:
    """Train every combination of values and return the one with the best dev score.

    Args:
        place: a clone, whose settings file is changed from trial to trial.
        grid: values by dotted key.
        run: brings a stage up to date.

    Raises:
        CseError: no trial has a dev score.
    """
    log = get_run_logger()
    before = stages_in_order(place.folder)
    stages = before[: before.index(_OBJECTIVE) + 1]
    scores: list[tuple[float, dict[str, Any]]] = []
    for values in product(*grid.values()):
        trial = dict(zip(grid, values, strict=True))
        write_settings(place.folder / PARAMS_FILE, None, trial)
        for stage in stages:
            run(stage)
        score = read_scores(place.folder).get("dev")
        label = ", ".join(f"{key} {value}" for key, value in trial.items())
        log.info("sweep: %s: dev %s", label, "-" if score is None else f"{score:.2f}")
        if score is not None:
            scores.append((score, trial))
    if not scores:
        raise CseError("sweep: no trial has a dev score to choose by; give dev pairs (data.dev_path)")
    return max(scores, key=lambda found: found[0])[1]
