"""The summary of a run as an artifact in Prefect: scores beside those before the run, and where its results are.

Prefect itself shows parameters, stages with their times, progress lines and why a run failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from cse.evaluation.dev_facts import SPEARMAN, DevScore, dev_of
from cse.evaluation.table import format_rows
from cse.files import read_csv
from cse.stages.common import METRICS, PLOTS, shortfall

SUMMARY = "run-summary"
UNIT = "times 100: Spearman, or the measure in brackets"


def read_scores(folder: Path) -> dict[str, float]:
    """Return the scores in a project's folder, times 100: ``dev``, and ``MODEL TASK``, with its measure in brackets.

    Without brackets it is Spearman.
    """
    dev = _dev(folder)
    scores = {} if dev is None else {"dev": dev.value}
    for model, tasks in _json(folder / METRICS / "evaluation.json").items():
        scores |= {f"{model} {task}": float(score) for task, score in tasks.items() if isinstance(score, int | float)}
    return scores


def read_shortfall(folder: Path) -> str:
    """Return in words how far the trained model scores below its bare backbone; empty if it does not."""
    scores: dict[str, dict[str, float]] = {}
    for row in read_csv(folder / PLOTS / "sts.csv"):
        scores.setdefault(row["model"], {})[row["task"]] = float(row["spearman"])
    return shortfall(scores)


def as_markdown(name: str, folder: Path, before: Mapping[str, float], facts: Mapping[str, str]) -> str:
    """Return the summary of a finished run: the scores in its folder beside those ``before``, and further facts."""
    now, dev = read_scores(folder), _dev(folder)
    short, rows = read_shortfall(folder), _json(folder / METRICS / "train.json").get("trained_on")
    head = "Finished."
    if dev is not None:
        change = f", {_against(dev.value, before['dev'])} compared with the previous run" if "dev" in before else ""
        head = f"Dev {dev.measure} * 100: **{dev.value:.2f}**{change}."
    head += (f" Trained on {rows}." if rows else "") + (f" **The model is {short}.**" if short else "")
    unit = UNIT if dev is None or dev.measure == SPEARMAN else f"{UNIT}; dev: {dev.measure}"
    table = [[one, f"{score:.2f}", _against(score, before.get(one))] for one, score in now.items()]
    parts = [f"# {name}", head, format_rows([[unit, "this run", "change"], *table], "markdown") if now else ""]
    parts.append("\n".join(f"- {fact}: {text}" for fact, text in facts.items()))
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def publish(name: str, folder: Path, before: Mapping[str, float], facts: Mapping[str, str]) -> None:
    """Write the summary as an artifact of the flow run; if the server is down, log a warning and continue."""
    try:
        create_markdown_artifact(as_markdown(name, folder, before, facts), key=SUMMARY, description=name)
    except Exception as error:  # whatever the client raises, the run continues
        get_run_logger().warning("artifact not written: %s", str(error) or type(error).__name__)


def _against(score: float, before: float | None) -> str:
    return "new" if before is None else f"{score - before:+.2f}"


def _dev(folder: Path) -> DevScore | None:
    return dev_of(_json(folder / METRICS / "train.json"))


def _json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}
