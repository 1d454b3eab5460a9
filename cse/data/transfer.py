"""Transfer tasks: sentences with classes, in SentEval's layout.

Checks the number of lines of each file. Blank lines count: SentEval encodes the few in CR and MPQA as empty sentences,
and published figures include them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cse.data.tasks.kinds import TRANSFER_TASKS, Labelled, TransferTask
from cse.data.text_files import text_lines
from cse.errors import CseError

_TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
# first file: class 1, second: class 0
_BINARY = {
    "MR": (("MR/rt-polarity.pos", 5331), ("MR/rt-polarity.neg", 5331)),
    "CR": (("CR/custrev.pos", 2407), ("CR/custrev.neg", 1368)),
    "SUBJ": (("SUBJ/subj.objective", 5000), ("SUBJ/subj.subjective", 5000)),
    "MPQA": (("MPQA/mpqa.pos", 3312), ("MPQA/mpqa.neg", 7294)),
}
_SST = (
    ("SST/binary/sentiment-train", 67349),
    ("SST/binary/sentiment-dev", 872),
    ("SST/binary/sentiment-test", 1821),
)
_TREC = (("TREC/train_5500.label", 5452), ("TREC/TREC_10.label", 500))
_MRPC = (("MRPC/msr_paraphrase_train.txt", 4076), ("MRPC/msr_paraphrase_test.txt", 1725))


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

    Raises:
        CseError: a file with a number of lines other than published, a broken line, or a class without rows.
    """
    root = senteval_root(folder) or folder
    tasks, missing = [], []
    for name in TRANSFER_TASKS:
        gap = next((file for file, _ in _files(name) if not (root / file).is_file()), None)
        if gap:
            missing.append(f"{name} ({gap})")
            continue
        task = _READERS.get(name, _read_binary)(root, name)
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


def _read_binary(root: Path, name: str) -> TransferTask:
    texts: list[str] = []
    label: list[int] = []
    for value, (file, count) in zip((1, 0), _BINARY[name], strict=True):
        found = [" ".join(line.split()) for line in _lines(root / file, count)]
        texts += found
        label += [value] * len(found)
    return TransferTask(name, make_labelled(texts, label))


def _read_sst(root: Path, name: str) -> TransferTask:
    def part(file: str, count: int) -> Labelled:
        texts, label = [], []
        for number, line in enumerate(_lines(root / file, count), start=1):
            text, tab, value = line.rstrip().rpartition("\t")
            if not tab or value not in ("0", "1"):
                raise CseError(f"{root / file}:{number}: expected a sentence, a tab and 0 or 1; fetch the file again")
            texts.append(" ".join(text.split()))
            label.append(int(value))
        return make_labelled(texts, label)

    return TransferTask(name, *(part(*file) for file in _SST))


def _read_trec(root: Path, name: str) -> TransferTask:
    def part(file: str, count: int) -> Labelled:
        texts, label = [], []
        for number, line in enumerate(_lines(root / file, count), start=1):
            coarse, colon, rest = line.partition(":")
            if not colon or coarse not in _TREC_CLASSES or " " not in rest:
                raise CseError(f"{root / file}:{number}: expected CLASS:detail and a question; fetch the file again")
            texts.append(" ".join(rest.split(" ", 1)[1].split()))
            label.append(_TREC_CLASSES.index(coarse))
        return make_labelled(texts, label)

    train, test = (part(*file) for file in _TREC)
    return TransferTask(name, train, test=test)


def _read_mrpc(root: Path, name: str) -> TransferTask:
    def part(file: str, count: int) -> Labelled:
        first, second, label = [], [], []
        for number, line in enumerate(_lines(root / file, count + 1)[1:], start=2):
            fields = line.strip().split("\t")
            if len(fields) != 5 or fields[0] not in ("0", "1"):
                raise CseError(f"{root / file}:{number}: expected 5 fields between tabs; fetch the file again")
            label.append(int(fields[0]))
            first.append(" ".join(fields[3].split()))
            second.append(" ".join(fields[4].split()))
        return make_labelled(first, label, second)

    train, test = (part(*file) for file in _MRPC)
    return TransferTask(name, train, test=test)


_READERS: dict[str, Callable[[Path, str], TransferTask]] = {
    "SST-2": _read_sst,
    "TREC": _read_trec,
    "MRPC": _read_mrpc,
}


def _files(name: str) -> tuple[tuple[str, int], ...]:
    return {**_BINARY, "SST-2": _SST, "TREC": _TREC, "MRPC": _MRPC}[name]


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
