"""Stage ``prepare``: convert a text source to Arrow data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cse.data.prepare import prepare
from cse.files import is_json_with
from cse.outputs import check_file, publish_file
from cse.settings import Settings
from cse.settings.data import DataSettings
from cse.stages.common import METRICS, PREPARED, run_stage

GROUPS = ("data",)


def prepare_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    metrics: Path = METRICS / "prepare.json",
    progress: bool = True,
) -> None:
    """Prepare the data, write the counts as metrics and print a summary."""
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
        **{f"rows_{name}": entry["kept"] for name, entry in report.get("more", {}).items()},
    }


def summary(report: dict[str, Any]) -> str:
    """Return a report as a few lines of text."""
    dev, evaluation, lines = report["dev"], report["evaluation"], []
    main = report["train"] | {"view": report["view"], "made_from": report.get("made_from")}
    for name, entry in [("train", main), *report.get("more", {}).items()]:
        lines += _of_source(name, entry)
    pairs = dev["task"]["description"] if "task" in dev else f"{dev['pairs']:,} pairs"
    lines.append(f"dev         {pairs} from {dev['from'] or 'nowhere'}")
    tasks = ", ".join(f"{name} {pairs:,}" for name, pairs in evaluation["tasks"].items()) or "none"
    lines.append(f"evaluation  {evaluation['pairs']:,} pairs: {tasks}")
    lines += [f"task        {name}: {task['description']}" for name, task in report.get("tasks", {}).items()]
    lines += [f"note        {note}" for note in report["notes"]]
    return "\n".join(lines)


def _of_source(title: str, found: dict[str, Any]) -> list[str]:
    """Return what became of the rows of one source."""
    clean = found["kept"] + found["not_drawn"]
    drawn = f", drawn from {clean:,} by data.seed" if found["not_drawn"] else ""
    made = found.get("made_from") == "categories"
    kept = f"{found['kept']:,} {'rows made of' if made else 'of'} {found['read']:,} {'texts' if made else 'rows kept'}"
    lines = [
        f"{title:11} {kept} from {found['source']} (view {found['view']}, {found['distinct_sentences']:,} distinct "
        f"sentences{drawn})"
    ]
    lines += [
        f"  dropped   {entry['count']:,} {reason} (first {entry['first']})"
        for reason, entry in found["dropped"].items()
        if entry["count"]
    ]
    if found["evaluation_overlap_kept"]:
        lines.append(f"  kept      {found['evaluation_overlap_kept']:,} with a sentence of the evaluation data")
    return lines


def files_of(data: DataSettings) -> list[Path]:
    """Return the user's files that ``prepare`` reads: rows, dev and evaluation data, tasks."""
    return sorted({*files_in(data.train_path, *(source.path for source in data.more)), *measuring_files(data)})


def measuring_files(data: DataSettings) -> list[Path]:
    """Return those of them that measure: dev and evaluation data, tasks."""
    return files_in(data.task_path, data.dev_path, data.evaluation_path)


def files_in(*paths: str) -> list[Path]:
    """Return the files at paths and below those that are folders."""
    found = (path.rglob("*") if path.is_dir() else [path] for path in map(Path, paths))
    return sorted(path for paths in found for path in paths if path.is_file())


if __name__ == "__main__":
    run_stage(prepare_stage)
