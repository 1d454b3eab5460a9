"""Evaluation data: the seven STS tasks as SentEval lays them out.

SentEval's files are plain text: a tab separates fields and a quote is an ordinary character. Sentences are split on
white space and joined by single blanks, as SentEval does. Every subset of a year goes into one task, in the order of
the tables below, and the number of scored pairs of each file is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cse.data.scored_file import Scored, check_score, make_scored
from cse.data.tasks.kinds import ScoredPairs, Task
from cse.data.text_files import text_lines
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


@dataclass(frozen=True)
class EvaluationData:
    """Contents of a SentEval folder.

    Attributes:
        tasks: complete test sets, in the order STS12 to STS16, STS-B, SICK-R.
        dev: what selects checkpoints, if there is anything: STS-B dev, or the user's own task.
        missing: absent sets, each with its first missing file, e.g. ``SICK-R (SICK/SICK_test_annotated.txt)``.
    """

    tasks: list[ScoredPairs]
    dev: Task | None
    missing: list[str]


def senteval_root(folder: Path) -> Path | None:
    """Return the ``downstream`` folder that ``folder`` is or contains, or ``None`` if there is none."""
    for root in (folder, folder / "downstream", folder / "data" / "downstream"):
        if (root / "STS").is_dir() or (root / "SICK").is_dir():
            return root
    return None


def read_senteval(folder: Path, *, required: bool = True) -> EvaluationData:
    """Read the seven STS tasks and STS-B dev from SentEval's ``downstream`` folder, or a folder that contains it.

    Raises:
        CseError: all files are missing and ``required`` is true, or a file has a broken line or a number of pairs other
            than published.
    """
    root = senteval_root(folder) or folder
    tasks, missing = [], []
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
    return EvaluationData(tasks, dev, missing)


def read_stsb(folder: Path, split: str) -> ScoredPairs:
    """Read a split of STS-B (``train``, ``dev`` or ``test``); the subsets are its genres.

    Raises:
        CseError: missing file, broken line, or a number of pairs other than published.
    """
    path = (senteval_root(folder) or folder) / _stsb_file(split)
    rows, genres = [], []
    for number, fields in _tab_fields(path, 7):
        rows.append((_words(fields[5]), _words(fields[6]), _gold(path, number, fields[4])))
        genres.append(fields[0])
    _check_count(path, len(rows), STSB[split])
    return make_scored("STS-B" if split == "test" else f"STS-B {split}", rows, genres)


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


def _read_sick(root: Path, name: str) -> ScoredPairs:
    path = root / _SICK_FILE
    rows = [
        (_words(fields[1]), _words(fields[2]), _gold(path, number, fields[3]))
        for number, fields in _tab_fields(path, 4)
        if number > 1
    ]
    _check_count(path, len(rows), SICK_TEST)
    return make_scored(name, rows, [name] * len(rows))


_READERS: dict[str, Callable[[Path, str], ScoredPairs]] = {
    "STS-B": lambda root, _: read_stsb(root, "test"),
    "SICK-R": _read_sick,
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


def _tab_fields(path: Path, least: int) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text_lines(path), start=1):
        if line.strip():
            yield number, _split(path, number, line, least)


def _split(path: Path, number: int, line: str, least: int) -> list[str]:
    fields = line.split("\t")
    if len(fields) < least:
        raise CseError(
            f"{path}:{number}: {len(fields)} fields separated by tabs, expected {least}; copy the file again"
        )
    return fields


def _words(text: str) -> str:
    return " ".join(text.split())


def _gold(path: Path, number: int, text: str, lowest: float = 0.0, highest: float = 5.0) -> float:
    return check_score(path, number, text, (lowest, highest), "copy the file again")


def _check_count(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise CseError(f"{path}: {found} scored pairs, the published set has {expected}; copy the file again")
