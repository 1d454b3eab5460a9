"""Prepare data: read the source, clean it and write the files that training and evaluation use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from cse.data.clean import CleaningReport, trimmed
from cse.data.documents import read_documents, whole_document
from cse.data.hold_out import HoldOut
from cse.data.read import TABLES, check_exists, contents, data_files, ending, find_data_file, open_table, plain
from cse.data.sample import SAMPLE, sample_pairs
from cse.data.shape import SCORES, pair_columns
from cse.data.sources import DOCUMENTS, open_more, open_source, unwatched, write_more
from cse.data.store import (
    DOCUMENTS_FILE,
    REPORT_FILE,
    STAND_INS,
    TRAIN_FILE,
    open_rows,
    source_file,
    texts_in,
    view_of,
    write_table,
)
from cse.data.suite import SuiteData, complete, only_pairs, read_senteval, senteval_root
from cse.data.tasks.kinds import SCORED, ScoredPairs, Task, all_texts, describe, held_out_texts, kind_of
from cse.data.tasks.read import is_beir, read_pairs, read_scored, read_task, read_tasks, splits_of
from cse.data.tasks.store import write_tasks
from cse.outputs import Kind, check_folder, publish_folder
from cse.settings.data import DataSettings

SENTEVAL, STSB_DEV = "SentEval", "STS-B dev"


def prepare(settings: DataSettings, out: Path, progress: bool = True) -> dict[str, Any]:
    """Write training rows, tasks and ``report.json`` to the folder ``out``.

    The folder appears complete or not at all; until then an existing one stays untouched. The same input and settings
    give the same bytes.

    Args:
        settings: the group ``data``.
        out: output folder; replaced if it exists.
        progress: whether to show a progress bar on stderr, if it is a terminal.

    Returns:
        The contents of ``report.json``.

    Raises:
        OSError: ``out`` is not writable.
    """
    check_folder(out, Kind.PREPARED_DATA)
    if settings.source == "sample":
        evaluation = SuiteData([sample_pairs("test")], dev=sample_pairs("dev"))
        origin: dict[str, str | None] = {"dev": SAMPLE, "evaluation": SAMPLE}
    else:
        evaluation, origin = _file_evaluation(settings)
    suite = _suite(settings, evaluation, origin)
    source, more = open_source(settings), open_more(settings)
    cleaning = source.report
    no_dev = origin["dev"] in (None, STSB_DEV)
    held_out_tasks = no_dev + (not suite.own) if settings.hold_out else 0  # to select with, and to measure
    trained = int(no_dev and settings.dev == "none")
    hold = None
    if held_out_tasks:
        hold = HoldOut(settings.hold_out, settings.seed, cleaning, parts=held_out_tasks, trained=trained)
    apart = list(_held_out(evaluation, suite.own))
    with publish_folder(out, Kind.PREPARED_DATA) as folder:
        source.write(folder / TRAIN_FILE, apart, hold, progress=progress)
        reports = write_more(more, folder, apart, hold, progress=progress)
        _write_documents(settings, folder)
        if hold is not None:
            measured = hold.tasks()
            if no_dev and not trained:
                evaluation, origin["dev"] = replace(evaluation, dev=measured.pop(0)), cleaning.source
            suite = suite.with_tasks(measured)
        write_tasks(folder, dev=evaluation.dev, test=suite.test, own=suite.own)
        report = _report(settings, cleaning, evaluation, origin, suite)
        report["notes"] += [note for one in (source, *more.values()) for note in one.notes]
        if settings.hold_out and not held_out_tasks:
            report["notes"].append("data.hold_out: none held out; data.dev_path selects and data.task_path measures")
        report |= {"more": reports} if reports else {}
        text = json.dumps(report, indent=2, sort_keys=True) + "\n"
        (folder / REPORT_FILE).write_text(text, encoding="utf-8", newline="\n")
    return report


def _write_documents(settings: DataSettings, folder: Path) -> None:
    """Write all documents, each text once, if rows of some were drawn: queries are trained against all of them."""
    sources = [settings, *map(settings.of, settings.more)]
    searched = [one for one in sources if one.view == DOCUMENTS and one.made_from == STAND_INS]
    if all(one.max_rows is None for one in searched):
        return
    rows = [open_rows(folder / name) for name in (TRAIN_FILE, *(source_file(source.name) for source in settings.more))]

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


def _file_evaluation(settings: DataSettings) -> tuple[SuiteData, dict[str, str | None]]:
    """Read tasks from ``evaluation_path`` and dev data from ``dev_path`` or STS-B; return the origin of each."""
    found, name = _tasks(settings)
    dev = _dev(settings)
    if dev is not None:
        return replace(found, dev=dev[0]), {"dev": dev[1], "evaluation": name}
    if settings.dev != "stsb":
        found = replace(found, dev=None)
    return found, {"dev": STSB_DEV if found.dev else None, "evaluation": name}


def _tasks(settings: DataSettings) -> tuple[SuiteData, str | None]:
    path = given_path(settings, "evaluation_path")
    if path is None:
        return SuiteData(), None
    if path.is_dir() and (senteval_root(path) or not data_files(path)):
        return read_senteval(path), SENTEVAL
    path = find_data_file(path, "data.evaluation_path")
    return SuiteData([_scored(path, settings)]), path.name


def _suite(settings: DataSettings, evaluation: SuiteData, origin: dict[str, str | None]) -> SuiteData:
    """Read what the full evaluation needs besides the similarity tasks, as far as it is available."""
    own = settings.source == "sample" or origin["evaluation"] != SENTEVAL
    suite = only_pairs(evaluation.test) if own else complete(Path(settings.evaluation_path), evaluation)
    if settings.source == "sample":
        return suite
    suite = suite.with_tasks(own_tasks(settings))
    captions = given_path(settings, "cxc_path")
    return suite if captions is None else suite.with_captions(captions)


def own_tasks(settings: DataSettings) -> list[Task]:
    """Read the tasks at ``data.task_path``; none without a path."""
    path = given_path(settings, "task_path")
    return [] if path is None else read_tasks(path, **_how(settings), setting="data.task_path")


def given_path(settings: DataSettings, key: str) -> Path | None:
    """Return the path in a setting; ``None`` for an empty folder, or the default if it does not exist."""
    path = Path(getattr(settings, key))
    if str(path) == DataSettings.model_fields[key].default and not os.path.lexists(path):
        return None
    check_exists(path, f"data.{key}")
    return None if path.is_dir() and not contents(path) else path


def _dev(settings: DataSettings) -> tuple[Task, str] | None:
    """Read the user's own task that selects checkpoints, and return where it is from; None without one.

    A file of pairs with scores counts as such, whatever else it has.
    """
    path = given_path(settings, "dev_path")
    if path is None:
        return None
    if not path.is_dir() or not (is_beir(path) or splits_of(path)):
        path = find_data_file(path, "data.dev_path")
        there = open_table(path, settings.encoding).columns if ending(path) in TABLES else []
        pairs = pair_columns(there, str(path), scores=True)
        if pairs and pairs.label in SCORES:
            lowest, highest = settings.score_range
            dev = read_pairs(path, plain(path).stem, settings.encoding, (lowest, highest), pairs)
            return dev, path.name if kind_of(dev) == SCORED else dev.name
    task = read_task(path, **_how(settings), setting="data.dev_path")
    return task, path.name if kind_of(task) == SCORED else task.name


def _scored(path: Path, settings: DataSettings) -> ScoredPairs:
    lowest, highest = settings.score_range
    return read_scored(path, plain(path).stem, settings.encoding, (lowest, highest), least=2)


def _how(settings: DataSettings) -> dict[str, Any]:
    """Return how to read tasks: labelled ones have the columns of the labelled rows to train on."""
    labelled = settings.columns if settings.view == "categories" else None
    return {"encoding": settings.encoding, "score_range": tuple(settings.score_range), "labelled": labelled}


def _held_out(evaluation: SuiteData, own: Sequence[Task]) -> Iterator[str]:
    """Yield the texts that no training row may hold: dev data, evaluation pairs, the user's own tasks."""
    for task in (*evaluation.test, evaluation.dev, *own):
        yield from () if task is None else held_out_texts(task)


def _report(
    settings: DataSettings,
    cleaning: CleaningReport,
    evaluation: SuiteData,
    origin: dict[str, str | None],
    suite: SuiteData,
) -> dict[str, Any]:
    notes = []
    dev = evaluation.dev
    if dev is None and settings.dev != "none":
        notes.append("no dev pairs: nothing selects a checkpoint; put scored pairs into data.dev_path or add STS-B")
    if not evaluation.test and not suite.own:
        notes.append("no evaluation tasks: nothing will be scored; put data into data.evaluation_path")
    if cleaning.kept < 2:
        notes.append("a single row: the negatives of a contrastive loss are other rows; training wants at least 2")
    notes += unwatched(settings)
    if evaluation.missing:
        notes.append(f"SentEval folder without {', '.join(evaluation.missing)}")
    return {
        "source": settings.source,
        "view": settings.rows,
        **({"made_from": settings.made_from} if settings.made_from else {}),
        "train": cleaning.as_dict(),
        "dev": {
            "from": origin["dev"],
            "pairs": len(dev) if isinstance(dev, ScoredPairs) else 0,
            **({} if dev is None or isinstance(dev, ScoredPairs) else {"task": _in_report(dev)}),
        },
        "evaluation": {
            "from": origin["evaluation"],
            "pairs": sum(map(len, evaluation.test)),
            "tasks": {task.name: len(task) for task in evaluation.test},
            "missing": evaluation.missing,
            "transfer": {task.name: len(task) for task in suite.transfer},
            "captions": 0 if suite.cxc is None else len(suite.cxc),
            "suite_missing": suite.missing,
        },
        **({"tasks": {task.name: _in_report(task) for task in suite.own}} if suite.own else {}),
        "notes": notes,
    }


def _in_report(task: Task) -> dict[str, Any]:
    """Return kind, description and counts of a task."""
    return {
        "kind": kind_of(task),
        "description": describe(task),
        "items": len(task),
        "texts": sum(1 for _ in all_texts(task)),
    }
