"""Stage ``prepare``: convert a text source to Arrow data sets, and sentences to pairs if the settings ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from cse.data.prepare import prepare
from cse.settings import Settings
from cse.settings.data import DataSettings
from cse.stages.common import PREPARED, run_stage


def prepare_stage(settings: Settings, *, prepared: Path = PREPARED, progress: bool = True) -> None:
    """Prepare the data and print a summary."""
    click.echo(summary(prepare_rows(settings, prepared, progress)))


def prepare_rows(settings: Settings, out: Path, progress: bool) -> dict[str, Any]:
    """Prepare the data, with pairs of neighbours in place of sentences if group ``mine`` asks for them."""

    def pairs_of(sentences: Sequence[str]) -> Iterable[tuple[str, str]]:
        from cse.model.device import choose_device  # torch takes seconds
        from cse.model.neighbours import neighbours_of
        from cse.model.sentence_encoder import load_bare

        own = settings.backbone
        bare = load_bare(own.name, own.revision, own.max_length, own.texts).to(choose_device("auto"))
        return neighbours_of(bare, sentences, settings.mine.neighbours, progress=progress)

    mines = settings.mine.neighbours > 0 and settings.data.rows == "sentences"
    return prepare(settings.data, out, progress, pairs_of if mines else None)


def summary(report: dict[str, Any]) -> str:
    """Return a report as a few lines of text."""
    dev, evaluation, lines = report["dev"], report["evaluation"], []
    main = report["train"] | {"view": report["view"], "made_from": report.get("made_from")}
    for name, entry in [("train", main), *report.get("more", {}).items()]:
        lines += _of_source(name, entry)
    if "pairs" in report:
        lines.insert(1, f"  pairs     {report['pairs']:,} of sentences that are among each other's nearest")
    lines.append(f"dev         {dev['task']} from {dev['from'] or 'nowhere'}")
    tasks = ", ".join(f"{name} {pairs:,}" for name, pairs in evaluation["tasks"].items()) or "none"
    lines.append(f"evaluation  {sum(evaluation['tasks'].values()):,} pairs: {tasks}")
    lines += [f"task        {name}: {task}" for name, task in report.get("tasks", {}).items()]
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
    paths = (data.train_path, data.task_path, data.dev_path, data.evaluation_path, *(each.path for each in data.more))
    found = (path.rglob("*") if path.is_dir() else [path] for path in map(Path, paths))
    return sorted({path for paths in found for path in paths if path.is_file()})


if __name__ == "__main__":
    run_stage(prepare_stage)
