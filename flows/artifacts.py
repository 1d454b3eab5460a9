"""Artifacts in Prefect: a summary with figures, a table of scores, progress while a stage runs.

If an artifact cannot be written (the server is down), the run logs a warning and continues.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from cse.evaluation.dev_facts import SPEARMAN, DevScore, dev_of
from cse.evaluation.table import format_rows
from cse.files import read_csv
from cse.settings.document import yaml_value
from cse.stages.common import METRICS, PLOTS, shortfall

SUMMARY, SCORES = "run-summary", "sts-scores"
UNIT = "times 100: Spearman, or the measure in brackets"


@dataclass
class Summary:
    """Summary of a run, filled in while it runs.

    Attributes:
        changes: settings of this run only: ``{"train.epochs": (1, 3)}``.
        before: scores before the run, see ``read_scores``.
        stages: ``(stage, state, seconds)`` in order.
        reason: why it failed or was refused; empty on success.
        shortfall: how far the model is below its bare backbone, in words; empty if it is not, or not known.
    """

    flow_run: str
    folder: Path
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    preset: str | None = None
    before: Mapping[str, float] = field(default_factory=dict)
    stages: list[tuple[str, str, float]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    shortfall: str = ""


def read_scores(folder: Path) -> dict[str, float]:
    """Return the scores in a project's folder, times 100: ``dev``, and ``MODEL TASK``, with its measure in brackets.

    Without brackets it is Spearman.
    """
    dev = _dev(folder)
    scores = {} if dev is None else {"dev": dev.value}
    for model, tasks in _json(folder / METRICS / "evaluation.json").items():
        scores |= {f"{model} {task}": float(score) for task, score in tasks.items() if isinstance(score, int | float)}
    return scores


def _dev(folder: Path) -> DevScore | None:
    return dev_of(_json(folder / METRICS / "train.json"))


def read_shortfall(folder: Path) -> str:
    """Return in words how far the trained model scores below its bare backbone; empty if it does not."""
    scores: dict[str, dict[str, float]] = {}
    for row in read_csv(folder / PLOTS / "sts.csv"):
        scores.setdefault(row["model"], {})[row["task"]] = float(row["spearman"])
    return shortfall(scores)


def as_markdown(summary: Summary) -> str:
    """Return the summary as Markdown."""
    now = {} if summary.reason and not _finished(summary) else read_scores(summary.folder)
    dev = _dev(summary.folder)
    parts = [f"# {summary.flow_run}", _headline(summary, now, dev)]
    if summary.stages:
        rows = [[stage, state, f"{seconds:.0f} s"] for stage, state, seconds in summary.stages]
        parts.append(format_rows([["stage", "state", "time"], *rows], "markdown"))
    if now:
        unit = f"{UNIT}{'' if dev is None or dev.measure == SPEARMAN else f'; dev: {dev.measure}'}"
        rows = [[name, f"{score:.2f}", _against(score, summary.before.get(name))] for name, score in now.items()]
        parts += ["## Scores", format_rows([[unit, "this run", "change"], *rows], "markdown")]
        parts += [f"![{title}]({address})" for title, address in _pictures(summary.folder)]
    if summary.preset or summary.changes:
        parts.append("## Changed for this run")
        if summary.preset:
            parts.append(f"Preset `{summary.preset}`.")
        rows = [[f"`{key}`", yaml_value(was), yaml_value(now)] for key, (was, now) in summary.changes.items()]
        parts.append(format_rows([["setting", "params.yaml", "this run"], *rows], "markdown"))
    if summary.facts:
        parts += ["## Location", "\n".join(f"- {head}: {text}" for head, text in summary.facts.items())]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def publish(summary: Summary) -> None:
    """Write the summary, and the table of scores, as artifacts of the flow run."""
    rows = score_table(summary.folder)
    if rows and _finished(summary):
        _try(lambda: create_table_artifact(table=rows, key=SCORES, description=UNIT))
    _try(lambda: create_markdown_artifact(markdown=as_markdown(summary), key=SUMMARY, description=summary.flow_run))


def score_table(folder: Path) -> list[dict[str, Any]]:
    """Return the scores of stage ``evaluate``: one row per model, one column per task."""
    tree = _json(folder / METRICS / "evaluation.json")
    return [
        {"model": model, **{task: round(score, 2) for task, score in tasks.items()}} for model, tasks in tree.items()
    ]


class Progress:
    """A progress artifact, created on the first update; after one that fails there are no more."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._artifact: Any = None
        self._failed = False

    def show(self, percent: float, line: str) -> None:
        """Move the bar."""
        if self._failed:
            return
        if self._artifact is None:
            key = "".join(letter if letter.isalnum() else "-" for letter in self.stage.lower()) + "-progress"
            self._artifact = _try(lambda: create_progress_artifact(percent, key=key, description=self.stage))
            self._failed = self._artifact is None
        else:
            update = _try(lambda: update_progress_artifact(self._artifact, progress=percent, description=line))
            self._failed = update is None


def _finished(summary: Summary) -> bool:
    return "evaluate" in [stage for stage, state, _ in summary.stages if state != "Failed"]


def _headline(summary: Summary, now: Mapping[str, float], dev: DevScore | None) -> str:
    if summary.reason:
        return f"**{summary.reason}**"
    short = f" **The model is {summary.shortfall}.**" if summary.shortfall else ""
    rows = _json(summary.folder / METRICS / "train.json").get("trained_on")
    told = f" Trained on {rows}." if rows else ""
    if "dev" not in now or dev is None:
        return f"Finished.{told}{short}"
    before = summary.before.get("dev")
    change = "" if before is None else f", {_against(now['dev'], before)} compared with the previous run"
    return f"Dev {dev.measure} * 100: **{now['dev']:.2f}**{change}.{told}{short}"


def _against(score: float, before: float | None) -> str:
    return "new" if before is None else f"{score - before:+.2f}"


def _pictures(folder: Path) -> list[tuple[str, str]]:
    """Return titles and figures as data URLs: an artifact has no files."""
    from cse.report.pictures import draw_scores, draw_training

    drawn = (draw_scores(folder / PLOTS / "sts.csv"), draw_training(folder / PLOTS / "train"))
    return [
        (picture.title, f"data:image/png;base64,{base64.b64encode(picture.png).decode()}")
        for picture in drawn
        if picture is not None
    ]


def _try(write: Callable[[], Any]) -> Any:
    try:
        return write()
    except Exception as error:  # whatever the client raises, the run continues
        get_run_logger().warning("artifact not written: %s", str(error) or type(error).__name__)
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}
