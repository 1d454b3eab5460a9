"""Flow ``evaluate-cse``: score any models without training; the table becomes an artifact."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas import State

from flows.cse_command import ended, run_command
from flows.parameters import Overrides, as_options


@flow(name="evaluate-cse")
def evaluate_cse(
    models: list[str] = ["data/checkpoint"],  # noqa: B006 - shown in Prefect's form, never changed
    suite: str | None = None,
    data: str | None = None,
    task: list[str] = [],  # noqa: B006
    cxc: str | None = None,
    out: str | None = None,
    overrides: Overrides = {},  # noqa: B006
) -> State[Any]:
    """Score models like `cse evaluate`.

    Args:
        models: checkpoints, bundles, or bare backbones given by folder or hub id; `NAME=MODEL` names a row.
        suite: `full`, or a comma-separated list from sts,cxc,transfer,retrieval,space,tasks; default:
            `evaluation.measures`.
        data: SentEval's downstream folder, scored pairs, or prepared data; default: the pipeline's.
        task: your own tasks, files or folders; without `data` and `suite`, nothing else is measured.
        cxc: CSV of CxC-STS that includes the captions.
        out: folder for records, for `cse report`.
        overrides: settings by dotted key.
    """
    with tempfile.TemporaryDirectory() as folder:
        scores = Path(folder, "scores.json")
        arguments = ["evaluate", *models, *as_options(overrides), "--json", str(scores)]
        for option, value in (("--suite", suite), ("--data", data), ("--cxc", cxc), ("--out", out)):
            arguments += [option, value] if value is not None else []
        for path in task:
            arguments += ["--task", path]
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
