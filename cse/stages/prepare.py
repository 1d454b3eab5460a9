"""Stage ``prepare``: convert a text source to Arrow data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cse.data.prepare import prepare
from cse.outputs import check_file, is_json_with, publish_file
from cse.settings import Settings
from cse.stages.common import METRICS, PREPARED, run_stage

GROUPS = ("data",)


def prepare_stage(
    settings: Settings, *, prepared: Path = PREPARED, metrics: Path = METRICS / "prepare.json", progress: bool = True
) -> None:
    """Prepare the data, write the counts as metrics and print a summary.

    Raises:
        CseError: the data are invalid; both outputs stay unchanged.
        OSError: an output cannot be written.
    """
    check_file(metrics, is_json_with("rows", "rows_read"))
    report = prepare(settings.data, prepared, progress)
    with publish_file(metrics) as target:
        text = json.dumps(counts(report), indent=2, sort_keys=True) + "\n"
        target.write_text(text, encoding="utf-8", newline="\n")
    click.echo(summary(report))


def counts(report: dict[str, Any]) -> dict[str, int]:
    """Return the counts of a report as one flat table for ``dvc metrics show``."""
    train = report["train"]
    dropped = {f"dropped_{reason}": entry["count"] for reason, entry in train["dropped"].items()}
    return {
        "rows": train["kept"],
        "rows_read": train["read"],
        "distinct_sentences": train["distinct_sentences"],
        "dev_pairs": report["dev"]["pairs"],
        "evaluation_tasks": len(report["evaluation"]["tasks"]),
        "evaluation_pairs": report["evaluation"]["pairs"],
        **({"own_tasks": len(report["tasks"])} if "tasks" in report else {}),
        **dropped,
    }


def summary(report: dict[str, Any]) -> str:
    """Return a report as a few lines of text."""
    train, dev, evaluation = report["train"], report["dev"], report["evaluation"]
    clean = train["kept"] + train["not_drawn"]
    drawn = f", drawn from {clean:,} by data.seed" if train["not_drawn"] else ""
    made = report.get("made_from") == "categories"
    kept = (
        f"{train['kept']:,} rows made of {train['read']:,}" if made else f"{train['kept']:,} of {train['read']:,} rows"
    )
    lines = [
        f"train       {kept}{' texts' if made else ' kept'} from {train['source']} (view {report['view']}, "
        f"{train['distinct_sentences']:,} distinct sentences{drawn})"
    ]
    lines += [
        f"  dropped   {entry['count']:,} {reason} (first {entry['first']})"
        for reason, entry in train["dropped"].items()
        if entry["count"]
    ]
    if train["evaluation_overlap_kept"]:
        lines.append(f"  kept      {train['evaluation_overlap_kept']:,} with a sentence of the evaluation data")
    pairs = dev["task"]["description"] if "task" in dev else f"{dev['pairs']:,} pairs"
    lines.append(f"dev         {pairs} from {dev['from'] or 'nowhere'}")
    tasks = ", ".join(f"{name} {pairs:,}" for name, pairs in evaluation["tasks"].items()) or "none"
    lines.append(f"evaluation  {evaluation['pairs']:,} pairs: {tasks}")
    lines += [f"task        {name}: {task['description']}" for name, task in report.get("tasks", {}).items()]
    lines += [f"note        {note}" for note in report["notes"]]
    return "\n".join(lines)


if __name__ == "__main__":
    run_stage(prepare_stage)
