"""Data of an evaluation: SentEval's folder, CxC-STS and the user's own tasks, read where they are or as prepared.

SentEval's files are plain text: a tab separates fields and a quote is an ordinary character. Sentences are split on
white space and joined by single blanks, as SentEval does. Every subset of a year goes into one task, in the order of
the tables below, and the number of scored pairs of each file is checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cse.data.cxc import CXC_FILE, read_cxc
from cse.data.read import text_lines
from cse.data.shape import read_score
from cse.data.store import PreparedData
from cse.data.tasks.kinds import TRANSFER_TASKS, CaptionPairs, ScoredPairs, Splits, Task, TransferTask, of_kind
from cse.data.tasks.read import Scored, check_names, make_scored
from cse.data.tasks.store import OWN, TEST, open_tasks
from cse.data.transfer import read_transfer, senteval_root
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
_CXC_NAME = "CxC-STS"
NO_CAPTIONS = f"{_CXC_NAME} ({CXC_FILE}; give it with --cxc or data.cxc_path)"


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
        """Return a copy with CxC-STS read from a CSV, see ``read_cxc``."""
        gaps = [gap for gap in self.missing if not gap.startswith(_CXC_NAME)]
        others = [task for task in self.test if not isinstance(task, CaptionPairs)]
        return dataclasses.replace(self, test=[*others, read_cxc(path)], missing=gaps)

    def with_tasks(self, tasks: Sequence[Task]) -> SuiteData:
        """Return a copy with more of the user's own tasks."""
        found = [*self.own, *tasks]
        check_names(found)
        return dataclasses.replace(self, own=found)


def open_suite(data: PreparedData) -> SuiteData:
    """Return the prepared data of an evaluation."""
    missing = data.report["evaluation"]["suite_missing"]
    return SuiteData(open_tasks(data, TEST), open_tasks(data, OWN), missing)


def read_suite(senteval: Path, cxc: Path | None) -> SuiteData:
    """Read the contents of a SentEval folder and a CxC file.

    Args:
        senteval: SentEval's ``downstream`` folder, or a folder that contains it.
        cxc: CSV of CxC-STS, or a folder that holds ``cxc_sts_test.csv``; None: skip CxC-STS.
    """
    if not senteval.is_dir():
        raise CseError(f"{senteval}: not a folder; the full evaluation needs SentEval's downstream folder")
    suite = complete(senteval, read_senteval(senteval, required=False))
    if not suite.test:
        raise CseError(f"{senteval}: no SentEval evaluation data here; expected {LAYOUT}, MR, CR, SUBJ and others")
    return suite if cxc is None else suite.with_captions(cxc)


def complete(senteval: Path, found: SuiteData) -> SuiteData:
    """Read the rest of a SentEval folder, besides the similarity tasks ``found`` in it."""
    missing = [name for name in found.missing if not name.startswith("STS-B dev")]
    splits = {}
    for split in STSB:
        try:
            splits[split] = dataclasses.replace(read_stsb(senteval, split), name=f"STS-B {split}")
        except FileNotFoundError as error:
            if split != "test":  # the test split is a similarity task and already listed
                missing.append(f"STS-B {split} ({Path(error.filename).name})")
    transfer, absent = read_transfer(senteval)
    stsb = [Splits("STS-B", splits)] if splits else []
    return SuiteData([*found.test, *stsb, *transfer], missing=[*missing, *absent, NO_CAPTIONS])


def only_pairs(tasks: Sequence[Task]) -> SuiteData:
    """Return the data for a user with scored pairs but without SentEval."""
    absent = [f"{name} (no SentEval folder)" for name in ("STS-B splits", *TRANSFER_TASKS)]
    return SuiteData([*tasks], missing=[*absent, NO_CAPTIONS])


def read_senteval(folder: Path, *, required: bool = True) -> SuiteData:
    """Read the seven STS tasks and STS-B dev from SentEval's ``downstream`` folder, or a folder that contains it."""
    root = senteval_root(folder) or folder
    tasks: list[Task] = []
    missing = []
    for name in TASKS:
        if gap := _first_missing(root, _files(name)):
            missing.append(f"{name} ({gap})")
        else:
            tasks.append(_READERS.get(name, _read_year)(root, name))
    dev = None
    if gap := _first_missing(root, [_stsb_file("dev")]):
        missing.append(f"STS-B dev ({gap})")
    else:
        dev = read_stsb(root, "dev")
    if required and not tasks and dev is None:
        raise CseError(f"{folder}: no SentEval evaluation data here; expected {LAYOUT}, or a file of scored pairs")
    return SuiteData(tasks, missing=missing, dev=dev)


def read_stsb(folder: Path, split: str) -> ScoredPairs:
    """Read a split of STS-B (``train``, ``dev`` or ``test``); the subsets are its genres."""
    path = (senteval_root(folder) or folder) / _stsb_file(split)
    name = "STS-B" if split == "test" else f"STS-B {split}"
    return _read_tabs(path, name, (5, 6, 4), STSB[split], subset=0)


def _read_tabs(
    path: Path, name: str, columns: tuple[int, int, int], expected: int, *, subset: int | None = None, heads: int = 0
) -> ScoredPairs:
    """Read pairs from the columns of two sentences and a gold score; without a column of subsets, they are one."""
    rows, subsets = [], []
    first, second, gold = columns
    for number, line in enumerate(text_lines(path), start=1):
        if line.strip() and number > heads:
            fields = _split(path, number, line, max(columns) + 1)
            rows.append((_words(fields[first]), _words(fields[second]), _gold(path, number, fields[gold])))
            subsets.append(name if subset is None else fields[subset])
    _check_count(path, len(rows), expected)
    return make_scored(name, rows, subsets)


def _read_year(root: Path, name: str) -> ScoredPairs:
    rows: list[Scored] = []
    subsets: list[str] = []
    for subset, expected in YEARS[name].items():
        source = root / _year_file(name, "input", subset)
        gold = root / _year_file(name, "gs", subset)
        scores = list(text_lines(gold))
        pairs = list(text_lines(source))
        if len(scores) != len(pairs):
            raise CseError(f"{gold}: {len(scores)} lines, but {source.name} has {len(pairs)}; copy both files again")
        found: list[Scored] = []
        for number, (pair, score) in enumerate(zip(pairs, scores, strict=True), start=1):
            if score.strip():
                first, second = _split(source, number, pair, 2)[:2]
                found.append((_words(first), _words(second), _gold(gold, number, score)))
        _check_count(gold, len(found), expected)
        rows += found
        subsets += [subset] * len(found)
    return make_scored(name, rows, subsets)


_READERS: dict[str, Callable[[Path, str], ScoredPairs]] = {
    "STS-B": lambda root, _: read_stsb(root, "test"),
    "SICK-R": lambda root, name: _read_tabs(root / _SICK_FILE, name, (1, 2, 3), SICK_TEST, heads=1),
}


def _files(name: str) -> list[str]:
    if name in YEARS:
        return [_year_file(name, kind, subset) for subset in YEARS[name] for kind in ("input", "gs")]
    return [_stsb_file("test") if name == "STS-B" else _SICK_FILE]


def _year_file(name: str, kind: str, subset: str) -> str:
    return f"STS/{name}-en-test/STS.{kind}.{subset}.txt"


def _stsb_file(split: str) -> str:
    return f"STS/STSBenchmark/sts-{split}.csv"


def _first_missing(root: Path, files: list[str]) -> str | None:
    return next((file for file in files if not (root / file).is_file()), None)


def _split(path: Path, number: int, line: str, least: int) -> list[str]:
    fields = line.split("\t")
    if len(fields) < least:
        raise CseError(
            f"{path}:{number}: {len(fields)} fields separated by tabs, expected {least}; copy the file again"
        )
    return fields


def _words(text: str) -> str:
    return " ".join(text.split())


def _gold(path: Path, number: int, text: str) -> float:
    return read_score(text, f"{path}:{number}", (0.0, 5.0), "copy the file again")


def _check_count(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise CseError(f"{path}: {found} scored pairs, the published set has {expected}; copy the file again")
