"""Data of an evaluation: the sets of the papers, as they are published, and the user's own tasks.

SentEval's files are plain text: a tab separates fields and a quote is an ordinary character. Sentences are split on
white space and joined by single blanks, as SentEval does. The rows of each file are counted: a copy with others would
give figures that cannot be compared. Blank lines of transfer tasks count: SentEval encodes the few in CR and MPQA as
empty sentences, and published figures include them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cse.data.checks import check_column, read_text
from cse.data.read import open_table, text_lines
from cse.data.shape import read_score
from cse.data.store import PreparedData
from cse.data.tasks.kinds import (
    TRANSFER_TASKS,
    CaptionPairs,
    Labelled,
    ScoredPairs,
    Splits,
    Task,
    TransferTask,
    of_kind,
)
from cse.data.tasks.read import Scored, check_names, make_scored
from cse.data.tasks.store import OWN, TEST, open_tasks
from cse.errors import CseError

# scored pairs per subset; pairs without a gold score (blank lines in 2015 and 2016) do not count
YEARS: dict[str, dict[str, int]] = {
    "STS12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {"deft-forum": 450, "deft-news": 300, "headlines": 750, "OnWN": 750, "images": 750, "tweet-news": 750},
    "STS15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "STS16": {
        "answer-answer": 254,
        "headlines": 249,
        "plagiarism": 230,
        "postediting": 244,
        "question-question": 209,
    },
}
STSB: dict[str, int] = {"train": 5749, "dev": 1500, "test": 1379}
SICK_TEST = 4927
TASKS = (*YEARS, "STS-B", "SICK-R")
LAYOUT = "STS/STS12-en-test ... STS/STS16-en-test, STS/STSBenchmark, SICK"
_SICK_FILE = "SICK/SICK_test_annotated.txt"
CXC_FILE, CXC_TEST = "cxc_sts_test.csv", 44_045
CXC_COLUMNS = ("sentence1_id", "sentence2_id", "score", "sampling_method", "sentence1", "sentence2")
_SAME_IMAGE = "c2c_cocaption"
_CXC_NAME = "CxC-STS"
NO_CAPTIONS = f"{_CXC_NAME} ({CXC_FILE}; give it with --cxc or data.cxc_path)"
_SCORES = (0.0, 5.0)
_AGAIN = "copy the file again"


class _Layout(NamedTuple):
    """How a transfer task lies in its files.

    Attributes:
        parts: files of each part with their numbers of lines: train, then test, or dev and test.
        line: the groups ``text`` and perhaps ``second`` and ``label``; else the first file has class 1, the second 0.
        wants: what a line holds, in words.
    """

    parts: Sequence[Sequence[tuple[str, int]]]
    line: str = "(?P<text>.*)"
    wants: str = ""
    classes: Sequence[str] = "01"
    heads: int = 0


_TRANSFER = {
    "MR": _Layout([[("MR/rt-polarity.pos", 5331), ("MR/rt-polarity.neg", 5331)]]),
    "CR": _Layout([[("CR/custrev.pos", 2407), ("CR/custrev.neg", 1368)]]),
    "SUBJ": _Layout([[("SUBJ/subj.objective", 5000), ("SUBJ/subj.subjective", 5000)]]),
    "MPQA": _Layout([[("MPQA/mpqa.pos", 3312), ("MPQA/mpqa.neg", 7294)]]),
    "SST-2": _Layout(
        [[(f"SST/binary/sentiment-{part}", count)] for part, count in (("train", 67349), ("dev", 872), ("test", 1821))],
        r"(?P<text>.*)\t(?P<label>[01])\s*",
        "a sentence, a tab and 0 or 1",
    ),
    "TREC": _Layout(
        [[("TREC/train_5500.label", 5452)], [("TREC/TREC_10.label", 500)]],
        "(?P<label>ABBR|DESC|ENTY|HUM|LOC|NUM):[^ ]* (?P<text>.*)",
        "CLASS:detail and a question",
        ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    ),
    "MRPC": _Layout(
        [[("MRPC/msr_paraphrase_train.txt", 4077)], [("MRPC/msr_paraphrase_test.txt", 1726)]],
        r"\s*(?P<label>[01])\t[^\t]*\t[^\t]*\t(?P<text>[^\t]*)\t(?P<second>[^\t]*)\s*",
        "5 fields between tabs",
        heads=1,
    ),
}


# ---- an evaluation -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteData:
    """Data of an evaluation.

    Attributes:
        test: what is measured as in the papers: similarity tasks (SentEval's or the user's), splits of STS-B,
            classification tasks, caption pairs.
        own: the user's own tasks, of any kind, measured one by one.
        missing: absent parts, each with its first missing file, e.g. ``SICK-R (SICK/SICK_test_annotated.txt)``.
        dev: what selects checkpoints, if there is anything: STS-B dev, or the user's own task.
    """

    test: list[Task] = field(default_factory=list)
    own: list[Task] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    dev: Task | None = None

    @property
    def sts(self) -> list[ScoredPairs]:
        """The similarity tasks."""
        return of_kind(self.test, ScoredPairs)

    @property
    def stsb(self) -> dict[str, ScoredPairs]:
        """Splits of STS-B, for retrieval (test) and the shape of the space (all)."""
        return next((task.splits for task in of_kind(self.test, Splits)), {})

    @property
    def transfer(self) -> list[TransferTask]:
        """The classification tasks."""
        return of_kind(self.test, TransferTask)

    @property
    def cxc(self) -> CaptionPairs | None:
        """The caption pairs."""
        return next(iter(of_kind(self.test, CaptionPairs)), None)

    def with_captions(self, path: Path) -> SuiteData:
        """Return a copy with CxC-STS read from a CSV, or a folder that holds ``cxc_sts_test.csv``."""
        gaps = [gap for gap in self.missing if not gap.startswith(_CXC_NAME)]
        others = [task for task in self.test if not isinstance(task, CaptionPairs)]
        return replace(self, test=[*others, read_cxc(path)], missing=gaps)

    def with_tasks(self, tasks: Sequence[Task]) -> SuiteData:
        """Return a copy with more of the user's own tasks."""
        found = [*self.own, *tasks]
        check_names(found)
        return replace(self, own=found)


def open_suite(data: PreparedData) -> SuiteData:
    """Return the prepared data of an evaluation."""
    missing = data.report["evaluation"]["missing"]
    return SuiteData(open_tasks(data, TEST), open_tasks(data, OWN), missing)


def read_suite(senteval: Path) -> SuiteData:
    """Read what is there of the seven STS tasks, the splits of STS-B and the transfer tasks.

    ``senteval`` is SentEval's ``downstream`` folder, or a folder that contains it.
    """
    root = senteval_root(senteval) or senteval
    gaps = {name: _first_missing(root, _files(name)) for name in (*TASKS, *(f"STS-B {split}" for split in STSB))}
    splits = {split: read_stsb(root, split) for split in STSB if not gaps[f"STS-B {split}"]}
    sts = [_read_sts(root, name) for name in TASKS if not gaps[name]]
    missing = [f"{name} ({gap})" for name, gap in gaps.items() if gap and name != "STS-B test"]
    transfer, absent = read_transfer(root)
    test: list[Task] = [*sts, *([Splits("STS-B", splits)] if splits else []), *transfer]
    if not test:
        expected = f"{LAYOUT}, MR, CR, SUBJ and others, or a file of scored pairs"
        raise CseError(f"{senteval}: no SentEval evaluation data here; expected {expected}")
    return SuiteData(test, missing=[*missing, *absent, NO_CAPTIONS], dev=splits.get("dev"))


def only_pairs(tasks: Sequence[Task]) -> SuiteData:
    """Return the data for a user with scored pairs but without SentEval."""
    absent = [f"{name} (no SentEval folder)" for name in ("STS-B splits", *TRANSFER_TASKS)]
    return SuiteData([*tasks], missing=[*absent, NO_CAPTIONS])


def senteval_root(folder: Path) -> Path | None:
    """Return the ``downstream`` folder that ``folder`` is or contains, or ``None`` if there is none."""
    roots = (folder, folder / "downstream", folder / "data" / "downstream")
    return next((root for root in roots if (root / "STS").is_dir() or (root / "SICK").is_dir()), None)


# ---- similarity ----------------------------------------------------------------------------------------------------


def read_stsb(folder: Path, split: str) -> ScoredPairs:
    """Read a split of STS-B (``train``, ``dev`` or ``test``)."""
    (file,) = _files(f"STS-B {split}")
    path = (senteval_root(folder) or folder) / file
    return _read_tabs(path, f"STS-B {split}", (5, 6, 4), STSB[split])


def _read_sts(root: Path, name: str) -> ScoredPairs:
    """Read one of the seven tasks."""
    if name in YEARS:
        return _read_year(root, name)
    if name == "SICK-R":
        return _read_tabs(root / _SICK_FILE, name, (1, 2, 3), SICK_TEST, heads=1)
    return replace(read_stsb(root, "test"), name=name)


def _files(name: str) -> list[str]:
    if name in YEARS:
        return [f"STS/{name}-en-test/STS.{kind}.{subset}.txt" for subset in YEARS[name] for kind in ("input", "gs")]
    split = name.removeprefix("STS-B").strip() or "test"
    return [_SICK_FILE if name == "SICK-R" else f"STS/STSBenchmark/sts-{split}.csv"]


def _first_missing(root: Path, files: Iterable[str]) -> str | None:
    return next((file for file in files if not (root / file).is_file()), None)


def _read_tabs(path: Path, name: str, columns: tuple[int, int, int], expected: int, *, heads: int = 0) -> ScoredPairs:
    """Read pairs from the columns of two sentences and a gold score."""
    rows = []
    first, second, gold = columns
    for number, line in enumerate(text_lines(path), start=1):
        if line.strip() and number > heads:
            fields = _split(path, number, line, max(columns) + 1)
            score = read_score(fields[gold], f"{path}:{number}", _SCORES, _AGAIN)
            rows.append((_words(fields[first]), _words(fields[second]), score))
    _check_count(path, len(rows), expected)
    return make_scored(name, rows)


def _read_year(root: Path, name: str) -> ScoredPairs:
    rows: list[Scored] = []
    subsets: list[str] = []
    files = iter(_files(name))
    for (subset, expected), source, gold in zip(YEARS[name].items(), files, files, strict=True):
        pairs, scores = (list(text_lines(root / file)) for file in (source, gold))
        if len(scores) != len(pairs):
            raise CseError(
                f"{root / gold}: {len(scores)} lines, but {Path(source).name} has {len(pairs)}; copy both files again"
            )
        before = len(rows)
        for number, (pair, score) in enumerate(zip(pairs, scores, strict=True), start=1):
            if score.strip():
                first, second = _split(root / source, number, pair, 2)[:2]
                value = read_score(score, f"{root / gold}:{number}", _SCORES, _AGAIN)
                rows.append((_words(first), _words(second), value))
        _check_count(root / gold, len(rows) - before, expected)
        subsets += [subset] * expected
    return make_scored(name, rows, subsets)


def _split(path: Path, number: int, line: str, least: int) -> list[str]:
    fields = line.split("\t")
    if len(fields) < least:
        raise CseError(f"{path}:{number}: {len(fields)} fields separated by tabs, expected {least}; {_AGAIN}")
    return fields


def _words(text: str) -> str:
    return " ".join(text.split())


def _check_count(path: Path, found: int, expected: int, what: str = "scored pairs") -> None:
    if found != expected:
        raise CseError(f"{path}: {found:,} {what}, expected {expected:,} as published; {_AGAIN}")


# ---- classes -------------------------------------------------------------------------------------------------------


def read_transfer(folder: Path) -> tuple[list[TransferTask], list[str]]:
    """Return the transfer tasks of a SentEval folder, and those that are absent, each with its missing file."""
    root, tasks, missing = senteval_root(folder) or folder, [], []
    for name in TRANSFER_TASKS:
        layout = _TRANSFER[name]
        if gap := _first_missing(root, (file for files in layout.parts for file, _ in files)):
            missing.append(f"{name} ({gap})")
            continue
        train, *more = (_part(root, layout, files) for files in layout.parts)
        tasks.append(TransferTask(name, train, *[None] * (2 - len(more)), *more))
    return tasks, missing


def make_labelled(texts: Sequence[str], label: Sequence[int], second: Sequence[str] | None = None) -> Labelled:
    """Sort rows by number of words and class, as SentEval does before making folds; the sort is stable."""
    words, others = ([len(text.split()) for text in column] for column in (texts, second or [""] * len(texts)))
    order = sorted(range(len(words)), key=lambda i: (words[i], others[i], label[i]))
    return Labelled(
        [texts[i] for i in order],
        np.array([label[i] for i in order], dtype=np.int64),
        None if second is None else [second[i] for i in order],
    )


def _part(root: Path, layout: _Layout, files: Sequence[tuple[str, int]]) -> Labelled:
    texts: list[list[str]] = []
    label = []
    pattern = re.compile(layout.line, re.DOTALL)
    for place, (file, count) in enumerate(files):
        for number, line in enumerate(_lines(root / file, count)[layout.heads :], start=1 + layout.heads):
            found = pattern.fullmatch(line)
            if found is None:
                raise CseError(f"{root / file}:{number}: expected {layout.wants}; fetch the file again")
            groups = found.groupdict()
            label.append(layout.classes.index(groups["label"]) if "label" in groups else 1 - place)
            texts.append([_words(groups[name]) for name in ("text", "second") if name in groups])
    first, *second = map(list, zip(*texts, strict=True))
    return make_labelled(first, label, *second)


def _lines(path: Path, expected: int) -> list[str]:
    try:  # original downloads of TREC and others are latin-1, cleaned copies are UTF-8
        path.read_bytes().decode()
        encoding = "utf-8"
    except UnicodeDecodeError:
        encoding = "latin-1"
    lines = list(text_lines(path, encoding))
    _check_count(path, len(lines), expected, "lines")
    return lines


# ---- captions ------------------------------------------------------------------------------------------------------


def read_cxc(path: Path) -> CaptionPairs:
    """Read the CSV of CxC-STS (Parekh et al. 2021) with its captions joined in.

    Co-caption pairs identify captions of the same image.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    if path.is_dir():
        path = path / CXC_FILE
    if not path.is_file():
        raise CseError(f"{path}: no such file; give the CSV of CxC-STS with the captions joined in")
    table = open_table(path)
    for name in CXC_COLUMNS:
        check_column(name, table.columns, str(path), "CxC-STS with its captions")
    ids: dict[str, int] = {}
    seen: dict[frozenset[int], int] = {}
    first, second, score, ends, same = [], [], [], [], []
    for number, values in table.pick(CXC_COLUMNS):
        if not values:
            continue
        *named, gold, method, one, other = values
        score.append(read_score(gold, f"{path}:{number}", _SCORES, _AGAIN))
        pair = [ids.setdefault(name, len(ids)) for name in named]
        if seen.setdefault(frozenset(pair), number) != number:
            raise CseError(f"{path}:{number}: repeats the pair of line {seen[frozenset(pair)]}; keep one score")
        ends.append(pair)
        same.append(method == _SAME_IMAGE)
        first.append(read_text(one, "sentence1", f"{path}:{number}"))
        second.append(read_text(other, "sentence2", f"{path}:{number}"))
    if not score or path.name == CXC_FILE:
        _check_count(path, len(score), CXC_TEST, "pairs")
    both = np.array(ends)
    edges = both[np.array(same)]
    graph = coo_matrix((np.ones(len(edges)), edges.T), shape=(len(ids), len(ids)))
    _, image_of = connected_components(graph, directed=False)
    return CaptionPairs(first, second, np.array(score), image_of[both[:, 0]].astype(np.int64))
