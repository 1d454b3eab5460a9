"""Prepare data: read the source, clean it and write the files that training and evaluation use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from cse.data.clean import CleaningReport, trimmed
from cse.data.documents import read_documents, whole_document
from cse.data.hold_out import HoldOut
from cse.data.read import check_exists, contents, data_files, find_data_file
from cse.data.sample import SAMPLE, sample_pairs
from cse.data.sources import WATCHED, Source, open_sources
from cse.data.store import (
    DOCUMENTS_FILE,
    REPORT_FILE,
    STAND_INS,
    TRAIN_FILE,
    open_rows,
    texts_in,
    view_of,
    write_rows,
    write_table,
)
from cse.data.suite import TASKS, SuiteData, only_pairs, read_suite, senteval_root
from cse.data.tasks.kinds import SCORED, Task, describe, held_out_texts, kind_of
from cse.data.tasks.read import Reading, is_beir, read_scored, read_task, read_tasks, splits_of
from cse.data.tasks.store import write_tasks
from cse.outputs import Kind, check_folder, publish_folder
from cse.settings.data import DataSettings

SENTEVAL, STSB_DEV = "SentEval", "STS-B dev"


PairsOf = Callable[[Sequence[str]], Iterable[tuple[str, str]]]


def prepare(
    settings: DataSettings, out: Path, progress: bool = True, pairs_of: PairsOf | None = None
) -> dict[str, Any]:
    """Write training rows, tasks and ``report.json`` to the folder ``out``.

    The folder appears complete or not at all; until then an existing one stays untouched. The same input and settings
    give the same bytes. Returns the contents of ``report.json``.

    Args:
        pairs_of: makes pairs to train on of the distinct plain sentences; None: they are trained on as they are.
    """
    check_folder(out, Kind.PREPARED_DATA)
    suite, origin = _evaluation(settings)
    sources = open_sources(settings)
    cleaning = sources[0].report
    no_dev = origin["dev"] in (None, STSB_DEV)
    held_out_tasks = no_dev + (not suite.own) if settings.hold_out else 0  # to select with, and to measure
    trained = int(no_dev and settings.dev == "none")
    hold = None
    if held_out_tasks:
        hold = HoldOut(settings.hold_out, settings.seed, cleaning, parts=held_out_tasks, trained=trained)
    watched = [*suite.sts, *([] if suite.dev is None else [suite.dev]), *suite.own]
    apart = [text for task in watched for text in held_out_texts(task)]  # no training row may hold one
    with publish_folder(out, Kind.PREPARED_DATA) as folder:
        reports = {source.name: source.write(folder, apart, hold, progress=progress) for source in sources}
        _write_documents(sources, folder)
        if hold is not None:
            measured = hold.tasks()
            if no_dev and not trained:
                suite, origin["dev"] = replace(suite, dev=measured.pop(0)), cleaning.source
            suite = suite.with_tasks(measured)
        write_tasks(folder, dev=suite.dev, test=suite.test, own=suite.own)
        report = _report(settings, cleaning, suite, origin)
        report["notes"] += [note for source in sources for note in source.notes]
        if settings.hold_out and not held_out_tasks:
            report["notes"].append("data.hold_out: none held out; data.dev_path selects and data.task_path measures")
        if pairs_of is not None:
            report |= {"view": "pairs", "pairs": _pair(folder / TRAIN_FILE, pairs_of)}
        report |= {"more": {name: found for name, found in reports.items() if name}} if settings.more else {}
        text = json.dumps(report, indent=2, sort_keys=True) + "\n"
        (folder / REPORT_FILE).write_text(text, encoding="utf-8", newline="\n")
    return report


def _pair(file: Path, pairs_of: PairsOf) -> int:
    """Replace sentences by pairs of them, and return how many."""
    sentences = list(dict.fromkeys(texts_in(open_rows(file), "sent0")))
    pairs = pairs_of(sentences)
    file.unlink()
    return write_rows(file, "pairs", pairs)


def _write_documents(sources: Sequence[Source], folder: Path) -> None:
    """Write all documents, each text once, if rows of some were drawn: queries are trained against all of them."""
    searched = [source.settings for source in sources if source.settings.made_from == STAND_INS]
    if all(one.max_rows is None for one in searched):
        return
    rows = [open_rows(folder / source.file) for source in sources]

    def texts() -> Iterator[str]:
        for one in searched:
            documents = read_documents(Path(one.train_path), one.columns, encoding=one.encoding)
            yield from (trimmed(whole_document(document)) for document in documents)
        for table in rows:  # judged pairs may have others
            yield from texts_in(table, "sent1") if view_of(table) == "pairs" else ()

    seen: set[bytes] = set()

    def distinct() -> Iterator[tuple[str]]:
        for text in texts():
            digest = blake2b(text.encode("utf-8"), digest_size=16).digest()
            if text and digest not in seen:
                seen.add(digest)
                yield (text,)

    write_table(folder / DOCUMENTS_FILE, pa.schema([("text", pa.string())]), distinct())


def _evaluation(settings: DataSettings) -> tuple[SuiteData, dict[str, str | None]]:
    """Read what selects checkpoints and what an evaluation measures; return the origin of dev and similarity tasks."""
    if settings.source == "sample":
        suite = replace(only_pairs([sample_pairs("test")]), dev=sample_pairs("dev"))
        return suite, {"dev": SAMPLE, "evaluation": SAMPLE}
    path = given_path(settings, "evaluation_path")
    if path is None:
        suite, name = only_pairs([]), None
    elif path.is_dir() and (senteval_root(path) or not data_files(path)):
        suite, name = read_suite(path), SENTEVAL
    else:
        path = find_data_file(path, "data.evaluation_path")
        suite, name = only_pairs([read_scored(path, _how(settings), least=2)]), path.name
    dev, of = suite.dev if settings.dev == "stsb" else None, STSB_DEV
    own = given_path(settings, "dev_path")
    if own is not None:
        if not own.is_dir() or not (is_beir(own) or splits_of(own)):
            own = find_data_file(own, "data.dev_path")
        dev = read_task(own, _how(settings, "data.dev_path"), scores=True)
        of = own.name if kind_of(dev) == SCORED else dev.name
    suite = replace(suite, dev=dev).with_tasks(own_tasks(settings))
    captions = given_path(settings, "cxc_path")
    suite = suite if captions is None else suite.with_captions(captions)
    return suite, {"dev": None if dev is None else of, "evaluation": name}


def own_tasks(settings: DataSettings) -> list[Task]:
    """Read the tasks at ``data.task_path``; none without a path."""
    path = given_path(settings, "task_path")
    return [] if path is None else read_tasks(path, _how(settings, "data.task_path"))


def given_path(settings: DataSettings, key: str) -> Path | None:
    """Return the path in a setting; ``None`` for an empty folder, or the default if it does not exist."""
    path = Path(getattr(settings, key))
    if str(path) == DataSettings.model_fields[key].default and not os.path.lexists(path):
        return None
    check_exists(path, f"data.{key}")
    return None if path.is_dir() and not contents(path) else path


def _how(settings: DataSettings, setting: str = "") -> Reading:
    """Return how to read tasks: labelled ones have the columns of the labelled rows to train on."""
    labelled = settings.columns if settings.view == "categories" else None
    return Reading(settings.encoding, settings.score_range, labelled, setting)


def _report(
    settings: DataSettings, cleaning: CleaningReport, suite: SuiteData, origin: dict[str, str | None]
) -> dict[str, Any]:
    notes = []
    dev, made = suite.dev, settings.made_from
    missing = [gap for gap in suite.missing if gap.partition(" (")[0] in (*TASKS, STSB_DEV)]
    if dev is None and settings.dev != "none":
        notes.append("no dev pairs: nothing selects a checkpoint; put scored pairs into data.dev_path or add STS-B")
    if not suite.sts and not suite.own:
        notes.append("no evaluation tasks: nothing will be scored; put data into data.evaluation_path")
    if cleaning.kept < 2:
        notes.append("a single row: the negatives of a contrastive loss are other rows; training wants at least 2")
    notes += [
        f"data.more.{source.name}: `dvc repro` does not notice changes of {source.path}; it watches {WATCHED}"
        for source in settings.more
        if not Path(source.path).resolve().is_relative_to(WATCHED.resolve())
    ]
    if missing:
        notes.append(f"SentEval folder without {', '.join(missing)}")
    pairs = f"{0 if dev is None else len(dev):,} pairs"
    return {
        "source": settings.source,
        "view": settings.rows,
        **({"made_from": made} if made else {}),
        "train": asdict(cleaning),
        "dev": {"from": origin["dev"], "task": pairs if dev is None or kind_of(dev) == SCORED else describe(dev)},
        "evaluation": {
            "from": origin["evaluation"],
            "tasks": {task.name: len(task) for task in suite.sts},
            "missing": suite.missing,
        },
        **({"tasks": {task.name: describe(task) for task in suite.own}} if suite.own else {}),
        "notes": notes,
    }
