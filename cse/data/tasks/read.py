"""Read a user's own tasks: a folder tells the kind by its files, a file by its columns and labels.

=============== ============================================================================================
kind            layout
=============== ============================================================================================
retrieval       a folder with corpus.jsonl, queries.jsonl and qrels/ (BEIR)
labelled texts  a folder with train.* and test.*, or a file with the columns text and category (label, intent)
triplets        a file with the columns anchor, positive, negative
binary pairs    a file with the columns sentence1, sentence2, label, whose labels say yes or no
scored pairs    a file with the columns sentence1, sentence2, score, whose labels are other numbers
=============== ============================================================================================

`cse.data.shape` has every name of a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from cse.data.checks import check_column, column_hint, listed, no_rows, read_text
from cse.data.clean import text_key
from cse.data.read import (
    TABLES,
    TableFile,
    as_stored,
    check_exists,
    contents,
    ending,
    find_data_file,
    open_table,
    plain,
)
from cse.data.shape import (
    CATEGORIES,
    SCORES,
    Columns,
    category_columns,
    judge_of,
    pair_columns,
    read_category,
    read_score,
    rows_of,
    triplet_columns,
)
from cse.data.tasks.beir import CORPUS, JUDGEMENTS, QUERIES, read_beir
from cse.data.tasks.kinds import HALVES, BinaryPairs, LabelledTexts, ScoredPairs, Task, Triplets
from cse.errors import CseError

_SEED = 42  # of the halves of one file
_BEIR = (CORPUS, QUERIES, JUDGEMENTS)
_LAYOUTS = (
    "a folder with corpus.jsonl, queries.jsonl and qrels; a folder with train.* and test.*; columns "
    "text,category; columns anchor,positive,negative; columns sentence1,sentence2,label; columns "
    "sentence1,sentence2,score"
)
Scored = tuple[str, str, float]
Texts = list[tuple[int, str, str]]  # line, text, label


class Reading(NamedTuple):
    """How a task is read.

    Attributes:
        encoding: of text files; None: UTF-8.
        score_range: lowest and highest gold score of scored pairs.
        labelled: columns of text and label of labelled texts; None: the usual ones.
        setting: what names the path, for errors.
    """

    encoding: str | None = None
    score_range: Sequence[float] = (0.0, 5.0)
    labelled: Sequence[str] | None = None
    setting: str = "the path"


# ---- what is there -------------------------------------------------------------------------------------------------


def is_beir(folder: Path) -> bool:
    """Return whether a folder is in BEIR's layout."""
    absent = [name for name in _BEIR if not as_stored(folder / name).exists()]
    if absent and len(absent) < len(_BEIR):
        there = next(name for name in _BEIR if name not in absent)
        raise CseError(f"{folder}: has {there} but no {absent[0]}; a retrieval task needs {', '.join(_BEIR)}")
    return not absent


def splits_of(folder: Path) -> dict[str, Path] | None:
    """Return the files ``train.*`` and ``test.*`` of labelled texts, or None if the folder has not both."""
    tables = [folder / name for name in contents(folder) if ending(name) in TABLES]
    found: dict[str, Path] = {}
    if not {"train", "test"} <= {plain(path).stem for path in tables}:
        return None
    for path in tables:
        if plain(path).stem not in ("train", "test") or plain(path).stem in found:
            raise CseError(f"{path}: beside train.* and test.* of labelled texts; move it elsewhere")
        found[plain(path).stem] = path
    return found


# ---- tasks ---------------------------------------------------------------------------------------------------------


def read_tasks(path: Path, how: Reading = Reading()) -> list[Task]:  # noqa: B008 - a constant
    """Read a task, or each task in a folder of several; an empty folder gives none."""
    check_exists(path, how.setting)
    several = path.is_dir() and not is_beir(path) and splits_of(path) is None
    tasks = [read_task(each, how) for each in ([path / name for name in contents(path)] if several else [path])]
    check_names(tasks)
    return tasks


def check_names(tasks: Sequence[Task]) -> None:
    """Refuse two tasks of one name."""
    names = [task.name for task in tasks]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise CseError(f"tasks: two are called {listed(twice)}; rename a file or folder")


def read_task(path: Path, how: Reading = Reading(), *, scores: bool = False) -> Task:  # noqa: B008 - a constant
    """Read one task, called as its file or folder; its layout and its columns tell the kind.

    With ``scores``, a file of pairs with scores counts as such, whatever else it has.
    """
    check_exists(path, how.setting)
    name = path.resolve().name if path.is_dir() else plain(path).stem
    if path.is_dir():
        if is_beir(path):
            return read_beir(path, name)
        if splits := splits_of(path):
            reference, rows = (
                _labelled(open_table(splits[part], how.encoding), how.labelled) for part in ("train", "test")
            )
            known = {label for _, _, label in reference}
            for line, _, label in rows:
                if label not in known:
                    has = f"has no reference row in {splits['train'].name}; add some there"
                    raise CseError(f"{splits['test']}:{line}: label {label[:40]!r} {has}")
            return _labelled_texts(str(splits["test"]), name, reference, rows)
        path = find_data_file(path, how.setting)
    return _read_table(open_table(path, how.encoding), name, how, scores=scores)


def _read_table(table: TableFile, name: str, how: Reading, *, scores: bool) -> Task:
    there, path = table.columns, table.shown
    if scores and (graded := pair_columns(there, path, scores=True)) and graded.label in SCORES:
        return _read_pairs(table, name, how, graded)
    if how.labelled and set(how.labelled) <= set(there):
        return _read_halves(table, name, how.labelled)
    triplets = triplet_columns(there)
    pairs = None if triplets else pair_columns(there, path)
    fits = {
        "triplets": triplets,
        "pairs": pairs if pairs and pairs.label else None,
        "labelled texts": category_columns(there),
    }
    found = {kind: columns for kind, columns in fits.items() if columns}
    if not found:
        raise CseError(f"{path}: the columns {listed(there)} are those of no task; give one of: {_LAYOUTS}")
    if len(found) > 1:
        told = " and ".join(f"{kind} ({', '.join(columns.names)})" for kind, columns in found.items())
        raise CseError(f"{path}: the columns fit {told}; rename or remove those that are not meant")
    ((kind, columns),) = found.items()
    if kind == "triplets":
        return _read_triplets(table, name, columns)
    if kind == "pairs":
        return _read_pairs(table, name, how, columns)
    labels = [each for each in CATEGORIES if each in there]
    if len(labels) > 1:
        raise CseError(f"{path}: the columns {' and '.join(labels)} both fit; remove or rename one")
    return _read_halves(table, name, None)


# ---- pairs and triplets --------------------------------------------------------------------------------------------


def _read_pairs(table: TableFile, name: str, how: Reading, columns: Columns) -> ScoredPairs | BinaryPairs:
    """Read pairs whose labels are scores, or say whether two texts belong together; others are counted."""
    judge = judge_of(table, columns, how.score_range)
    if judge.graded:
        return _scored(table, name, columns, how, least=2)
    every = [(*texts, judge.of(label)) for _, (*texts, label) in _rows(table, columns)]
    rows = [row for row in every if row[2] is not None]
    _check_count(table.shown, len(rows), "pairs")
    first, second, label = zip(*rows, strict=True)
    if len(set(label)) < 2:
        all_of = f"all {len(rows)} pairs have the label {int(label[0])}"
        raise CseError(f"{table.shown}: {all_of}; add pairs with the other one")
    return BinaryPairs(name, list(first), list(second), np.array(label), len(every) - len(rows))


def read_scored(path: Path, how: Reading = Reading(), *, least: int = 1) -> ScoredPairs:  # noqa: B008 - a constant
    """Read scored pairs of at least so many different scores; a column of scores is taken before one of labels."""
    check_exists(path, "the setting that names it")
    table = open_table(path, how.encoding)
    columns = pair_columns(table.columns, str(path), scores=True)
    if columns is None or not columns.label:
        missing = "score" if columns else "sentence1"
        hint = column_hint(missing, table.columns)
        raise CseError(f"{path}: no column {missing!r}{hint}; name them sentence1, sentence2, score")
    return _scored(table, plain(path).stem, columns, how, least=least)


def _scored(table: TableFile, name: str, columns: Columns, how: Reading, *, least: int) -> ScoredPairs:
    path = table.shown
    rows: list[Scored] = []
    seen: dict[frozenset[str], tuple[int, float]] = {}
    for line, (first, second, value) in _rows(table, columns):
        score = read_score(value, f"{path}:{line}", how.score_range, "fix it or set data.score_range")
        before, earlier = seen.setdefault(frozenset((first, second)), (line, score))
        if earlier != score:
            raise CseError(
                f"{path}:{line}: score {score:g} for the pair that has {earlier:g} in line {before}; keep one of them"
            )
        rows.append((first, second, score))
    if not rows:
        raise no_rows(path)
    if len({score for _, _, score in rows}) < least:
        count = f"{len(rows)} pair{'s' if len(rows) > 1 else ''}"
        raise CseError(
            f"{path}: {count} with the score {rows[0][2]:g}; Spearman needs at least 2 pairs and two different "
            "scores: add pairs or remove the file"
        )
    return make_scored(name, rows)


def make_scored(name: str, rows: list[Scored], subsets: list[str] | None = None) -> ScoredPairs:
    """Turn rows ``(sentence1, sentence2, score)`` into ``ScoredPairs``."""
    first, second, score = ([row[place] for row in rows] for place in range(3))
    return ScoredPairs(name, first, second, np.array(score, np.float64), subsets)  # type: ignore[arg-type]


def _read_triplets(table: TableFile, name: str, columns: Columns) -> Triplets:
    sides: tuple[list[str], ...] = ([], [], [])
    for row in rows_of(table, "triplets", columns):
        for side, text, column in zip(sides, row.texts if any(row.texts) else (), columns.texts, strict=False):
            side.append(read_text(text, column, f"{table.shown}:{row.line}"))
    _check_count(table.shown, len(sides[0]), "triplets")
    return Triplets(name, *sides)


# ---- labelled texts ------------------------------------------------------------------------------------------------


def _read_halves(table: TableFile, name: str, columns: Sequence[str] | None) -> LabelledTexts:
    """Read labelled texts from one file; half of each label's rows are reference rows, the others test rows.

    The draw depends on nothing but the number of a label's texts; an odd one is a test row. Copies of a text are all in
    one half, or the other would know them.
    """
    rows, path = _labelled(table, columns), table.shown
    by_label: dict[str, dict[bytes, list[int]]] = {}
    for place, (_, text, label) in enumerate(rows):
        by_label.setdefault(label, {}).setdefault(text_key(text), []).append(place)
    reference: set[int] = set()
    for label, texts in by_label.items():
        if len(texts) == 1:
            line = rows[next(iter(texts.values()))[0]][0]
            raise CseError(f"{path}:{line}: the only text with the label {label[:40]!r}; add another or remove it")
        drawn = Random(f"cse labelled texts {_SEED}").sample([*texts.values()], len(texts) // 2)
        reference.update(place for copies in drawn for place in copies)
    test = [row for place, row in enumerate(rows) if place not in reference]
    return _labelled_texts(path, name, [rows[place] for place in sorted(reference)], test, HALVES)


def _labelled_texts(path: str, name: str, reference: Texts, test: Texts, *split: str) -> LabelledTexts:
    labels = [label for _, _, label in test]
    if len(set(labels)) == 1:
        raise CseError(f"{path}: all texts have the label {labels[0][:40]!r}; add texts with another label")
    _check_count(path, len(labels), "test rows")
    if len(set(labels)) == len(labels):
        raise CseError(f"{path}: no label has two test rows, so no text has another of its label; add texts")
    texts = ([row[place] for row in rows] for rows in (reference, test) for place in (1, 2))
    return LabelledTexts(name, *texts, *split)  # type: ignore[arg-type]


def _labelled(table: TableFile, names: Sequence[str] | None) -> Texts:
    there, path = table.columns, table.shown
    for column in names or ():
        check_column(column, there, path, "data.columns")
    columns = Columns((names[0],), names[1]) if names else category_columns(there)
    if columns is None:
        raise CseError(f"{path}: labelled texts need the columns text, category; the columns are {', '.join(there)}")
    rows = []
    for line, (text, value) in _rows(table, columns):
        label = read_category(value, f"{path}:{line}")
        if not label:
            raise CseError(f"{path}:{line}: no label; fill it in or drop the row")
        rows.append((line, text, label))
    return rows


def _rows(table: TableFile, columns: Columns) -> Iterator[tuple[int, list[Any]]]:
    """Yield the line and the values of each row that is not blank; the texts are checked and trimmed."""
    line, texts = 0, len(columns.texts)
    for line, values in table.pick(columns.names):
        if values:
            pairs = zip(values, columns.texts, strict=False)
            yield line, [*(read_text(value, name, f"{table.shown}:{line}") for value, name in pairs), *values[texts:]]
    if not line:
        raise no_rows(table.shown)


def _check_count(path: str, count: int, what: str) -> None:
    if count < 2:
        raise CseError(f"{path}: {count} {what[:-1] if count == 1 else what}; a task needs at least 2, add some")
