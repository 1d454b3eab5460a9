"""Transfer tasks: sentences with classes, in SentEval's layout.

Checks the number of lines of each file. Blank lines count: SentEval encodes the few in CR and MPQA as empty sentences,
and published figures include them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cse.data.read import text_lines
from cse.data.tasks.kinds import TRANSFER_TASKS, Labelled, TransferTask
from cse.errors import CseError

_TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_Row = tuple[list[str], int]  # a sentence or two, and a class


class _Layout(NamedTuple):
    """How a task lies in its files.

    Attributes:
        parts: files of each part with their numbers of lines: train, then test, or dev and test.
        read: returns the row in a line of the part's file with this number, None for a broken line.
    """

    parts: Sequence[Sequence[tuple[str, int]]]
    read: Callable[[str, int], _Row | None]
    wants: str = ""
    heads: int = 0


def _read_plain(line: str, file: int) -> _Row:
    return [line], 1 - file  # first file: class 1, second: class 0


def _read_sst(line: str, _: int) -> _Row | None:
    text, tab, value = line.rstrip().rpartition("\t")
    return ([text], int(value)) if tab and value in ("0", "1") else None


def _read_trec(line: str, _: int) -> _Row | None:
    coarse, colon, rest = line.partition(":")
    known = colon and coarse in _TREC_CLASSES and " " in rest
    return ([rest.split(" ", 1)[1]], _TREC_CLASSES.index(coarse)) if known else None


def _read_mrpc(line: str, _: int) -> _Row | None:
    fields = line.strip().split("\t")
    return (fields[3:], int(fields[0])) if len(fields) == 5 and fields[0] in ("0", "1") else None


_SST = [
    [("SST/binary/sentiment-train", 67349)],
    [("SST/binary/sentiment-dev", 872)],
    [("SST/binary/sentiment-test", 1821)],
]
_TREC = [[("TREC/train_5500.label", 5452)], [("TREC/TREC_10.label", 500)]]
_MRPC = [[("MRPC/msr_paraphrase_train.txt", 4077)], [("MRPC/msr_paraphrase_test.txt", 1726)]]
_LAYOUTS = {
    "MR": _Layout([[("MR/rt-polarity.pos", 5331), ("MR/rt-polarity.neg", 5331)]], _read_plain),
    "CR": _Layout([[("CR/custrev.pos", 2407), ("CR/custrev.neg", 1368)]], _read_plain),
    "SUBJ": _Layout([[("SUBJ/subj.objective", 5000), ("SUBJ/subj.subjective", 5000)]], _read_plain),
    "MPQA": _Layout([[("MPQA/mpqa.pos", 3312), ("MPQA/mpqa.neg", 7294)]], _read_plain),
    "SST-2": _Layout(_SST, _read_sst, "a sentence, a tab and 0 or 1"),
    "TREC": _Layout(_TREC, _read_trec, "CLASS:detail and a question"),
    "MRPC": _Layout(_MRPC, _read_mrpc, "5 fields between tabs", heads=1),
}


def senteval_root(folder: Path) -> Path | None:
    """Return the ``downstream`` folder that ``folder`` is or contains, or ``None`` if there is none."""
    for root in (folder, folder / "downstream", folder / "data" / "downstream"):
        if (root / "STS").is_dir() or (root / "SICK").is_dir():
            return root
    return None


def read_transfer(folder: Path) -> tuple[list[TransferTask], list[str]]:
    """Read the transfer tasks of a SentEval ``downstream`` folder.

    Returns:
        The complete tasks in the order of ``TRANSFER_TASKS``, and the absent ones, each with its missing file.
    """
    root = senteval_root(folder) or folder
    tasks, missing = [], []
    for name in TRANSFER_TASKS:
        layout = _LAYOUTS[name]
        gap = next((file for files in layout.parts for file, _ in files if not (root / file).is_file()), None)
        if gap:
            missing.append(f"{name} ({gap})")
            continue
        train, *more = (_part(root, layout, files) for files in layout.parts)
        task = TransferTask(name, train, *[None] * (2 - len(more)), *more)
        _check_classes(task)
        tasks.append(task)
    return tasks, missing


def make_labelled(texts: Sequence[str], label: Sequence[int], second: Sequence[str] | None = None) -> Labelled:
    """Sort rows by number of words and class, as SentEval does before making folds; the sort is stable."""
    words = [len(text.split()) for text in texts]
    others = [0] * len(words) if second is None else [len(text.split()) for text in second]
    order = sorted(range(len(words)), key=lambda i: (words[i], others[i], label[i]))
    return Labelled(
        [texts[i] for i in order],
        np.array([label[i] for i in order], dtype=np.int64),
        None if second is None else [second[i] for i in order],
    )


def _part(root: Path, layout: _Layout, files: Sequence[tuple[str, int]]) -> Labelled:
    rows = []
    for place, (file, count) in enumerate(files):
        lines = _lines(root / file, count)[layout.heads :]
        for number, line in enumerate(lines, start=1 + layout.heads):
            row = layout.read(line, place)
            if row is None:
                raise CseError(f"{root / file}:{number}: expected {layout.wants}; fetch the file again")
            rows.append(row)
    first, *second = (
        [" ".join(text.split()) for text in column] for column in zip(*(row[0] for row in rows), strict=True)
    )
    return make_labelled(first, [label for _, label in rows], *second)


def _lines(path: Path, expected: int) -> list[str]:
    try:  # original downloads of TREC and others are latin-1, cleaned copies are UTF-8
        path.read_bytes().decode()
        encoding = "utf-8"
    except UnicodeDecodeError:
        encoding = "latin-1"
    lines = list(text_lines(path, encoding))
    if len(lines) != expected:
        raise CseError(f"{path}: {len(lines):,} lines, expected {expected:,} as published; copy the file again")
    return lines


def _check_classes(task: TransferTask) -> None:
    """Reject a task with a class missing from one of its parts, since its accuracy would mean something else."""
    classes = range(int(max(part.label.max() for part in task.parts)) + 1)
    for part in task.parts:
        counts = np.bincount(part.label, minlength=len(classes))
        if (counts == 0).any():
            empty = int(np.flatnonzero(counts == 0)[0])
            raise CseError(f"{task.name}: class {empty} of {len(classes)} has no rows in a part of the task; check it")
