"""Flow ``evaluate-cse``: score any models without training; the table becomes an artifact."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas import State

from cse.cli.evaluate import evaluate
from flows.cse_command import arguments_of, ended, run_command, takes


@flow(name="evaluate-cse")
@takes(evaluate, but=("json_path", "style"))
def evaluate_cse(
    models: list[str] = ["data/checkpoint"],  # noqa: B006 - shown in Prefect's form, never changed
    **given: Any,
) -> State[Any]:
    """Score models like `cse evaluate`.

    Args:
        models: checkpoints, bundles, or bare backbones given by folder or hub id; `NAME=MODEL` names a row.
    """
    with tempfile.TemporaryDirectory() as folder:
        scores = Path(folder, "scores.json")
        arguments = arguments_of(evaluate, given | {"models": models, "json_path": str(scores)})
        state = run_command("evaluate", arguments, return_state=True)
        if state.is_completed():
            create_table_artifact(table=_rows(json.loads(scores.read_text())), key="scores")
    return ended(state)


def _rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per model from the JSON of ``cse evaluate``: STS tasks and averages."""
    rows = []
    for model, tree in results.items():
        row: dict[str, Any] = {"model": model}
        for name, value in {
            **tree.get("sts", {}),
            **{key: value for key, value in tree.items() if key != "sts"},
        }.items():
            if isinstance(value, dict) and isinstance(value.get("all"), int | float):
                row[name] = round(value["all"], 2)
        for name, score in tree.get("tasks", {}).items():
            row[f"{name} ({score['main']})"] = round(score["values"][score["main"]], 2)
        rows.append(row)
    return rows
