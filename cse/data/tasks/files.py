"""Read tasks from one table: pairs with a label, triplets, and the rows of labelled texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cse.data.checks import check_column, check_text, no_rows, required_text
from cse.data.clean import MOST_CHARACTERS
from cse.data.tables import open_table
from cse.data.tasks.kinds import BINARY, HALVES, LABELLED, TRIPLETS, BinaryPairs, LabelledTexts, Triplets
from cse.data.tasks.layout import COLUMNS, names_of
from cse.errors import CseError

_TRUE, _FALSE = ("1", "true"), ("0", "false")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_SEED = 42  # of the halves of one file
Texts = list[tuple[int, str, str]]  # line, text, label


def read_binary(path: Path, name: str, encoding: str | None = None) -> BinaryPairs:
    """Read pairs with a label: 0 or 1, true or false, in any case.

    Raises:
        CseError: anything wrong with the file, another label, fewer than two pairs, or one label only.
    """
    rows = list(_rows(path, BINARY, 2, encoding))
    labels = [_truth(values[2], f"{path}:{line}") for line, values in rows]
    _check_count(path, len(rows), "pairs")
    if len(set(labels)) < 2:
        raise CseError(f"{path}: all {len(rows)} pairs have the label {int(labels[0])}; add pairs with the other one")
    first, second, _ = zip(*(values for _, values in rows), strict=True)
    return BinaryPairs(name, list(first), list(second), np.array(labels))


def read_triplets(path: Path, name: str, encoding: str | None = None) -> Triplets:
    """Read triplets.

    Raises:
        CseError: anything wrong with the file, or fewer than two triplets.
    """
    rows = [values for _, values in _rows(path, TRIPLETS, 3, encoding)]
    _check_count(path, len(rows), "triplets")
    anchor, positive, negative = zip(*rows, strict=True)
    return Triplets(name, list(anchor), list(positive), list(negative))


def read_splits(
    train: Path, test: Path, name: str, encoding: str | None = None, columns: Sequence[str] | None = None
) -> LabelledTexts:
    """Read labelled texts that are split into reference (train) and test rows.

    Args:
        train: file of the reference rows.
        test: file of the test rows.
        name: of the task.
        encoding: of text.
        columns: names of the columns of text and label; None: the usual ones.

    Raises:
        CseError: anything wrong with a file, a single label, a label of test rows without a reference row, or no label
            with two test rows.
    """
    reference, rows = _labelled(train, encoding, columns), _labelled(test, encoding, columns)
    known = {label for _, _, label in reference}
    for line, _, label in rows:
        if label not in known:
            raise CseError(f"{test}:{line}: label {label[:40]!r} has no reference row in {train.name}; add some there")
    _check_labels(test, [label for _, _, label in rows])
    return _task(name, reference, rows)


def read_halves(
    path: Path, name: str, encoding: str | None = None, columns: Sequence[str] | None = None
) -> LabelledTexts:
    """Read labelled texts from one file; half of each label's rows are reference rows, the others test rows.

    The draw depends on nothing but the number of a label's rows; an odd one is a test row. For ``columns`` see
    ``read_splits``.

    Raises:
        CseError: anything wrong with the file, a single label, a label with one text, or none with two test rows.
    """
    rows = _labelled(path, encoding, columns)
    by_label: dict[str, list[int]] = {}
    for place, (_, _, label) in enumerate(rows):
        by_label.setdefault(label, []).append(place)
    reference: set[int] = set()
    for label, places in by_label.items():
        if len(places) == 1:
            line = rows[places[0]][0]
            raise CseError(f"{path}:{line}: the only text with the label {label[:40]!r}; add another or remove it")
        reference.update(Random(f"cse labelled texts {_SEED}").sample(places, len(places) // 2))
    test = [row for place, row in enumerate(rows) if place not in reference]
    _check_labels(path, [label for _, _, label in test])
    return _task(name, [rows[place] for place in sorted(reference)], test, HALVES)


def holds_scores(path: Path, encoding: str | None = None) -> bool:
    """Return whether the labels of a file of pairs are graded: numbers, not all of them 0 or 1."""
    table = open_table(path, encoding)
    column = (names_of(BINARY, table.columns) or [])[2]
    labels = {_plain(values[0]) for _, values in table.pick([column]) if values}
    return all(map(_NUMBER.fullmatch, labels)) and not labels <= {"0", "1"}


def _task(name: str, reference: Texts, test: Texts, *split: str) -> LabelledTexts:
    texts = ([row[place] for row in rows] for rows in (reference, test) for place in (1, 2))
    return LabelledTexts(name, *texts, *split)  # type: ignore[arg-type]


def _labelled(path: Path, encoding: str | None, columns: Sequence[str] | None) -> Texts:
    rows = []
    for line, (text, label) in _rows(path, LABELLED, 1, encoding, columns):
        plain = _plain(label)
        check_text(plain, f"{path}:{line}")
        if not plain:
            raise CseError(f"{path}:{line}: no label; fill it in or drop the row")
        rows.append((line, text, plain))
    return rows


def _rows(
    path: Path, kind: str, texts: int, encoding: str | None, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the line and the values of each row that is not blank; the first ``texts`` are checked and trimmed."""
    table = open_table(path, encoding)
    names = list(columns) if columns else names_of(kind, table.columns)
    for name in columns or ():
        check_column(name, table.columns, str(path), "data.columns")
    if names is None:
        wanted = ", ".join(usual[0] for usual in COLUMNS[kind])
        raise CseError(f"{path}: {kind} need the columns {wanted}; the columns are {', '.join(table.columns)}")
    line = 0
    for line, values in table.pick(names, texts):
        if values:
            pairs = zip(values[:texts], names[:texts], strict=True)
            yield line, [*(read_text(value, name, f"{path}:{line}") for value, name in pairs), *values[texts:]]
    if not line:
        raise no_rows(str(path))


def read_text(value: Any, column: str, where: str) -> str:
    """Return a text without the blanks around it.

    Raises:
        CseError: it is missing, blank, not text or over 100,000 characters.
    """
    text = required_text(value, column, where, blank=False)
    if len(text) > MOST_CHARACTERS:
        raise CseError(f"{where}: {len(text):,} characters in column {column!r}; split the text")
    return text.strip()


def _plain(label: Any) -> str:
    """Return a label as text: a CSV's is text, a JSON's or parquet's may be a number or a truth value."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    text = "" if label is None else str(label).strip()
    return text.lower() if text.lower() in ("true", "false") else text


def _truth(label: Any, where: str) -> bool:
    plain = _plain(label)
    if plain not in (*_TRUE, *_FALSE):
        raise CseError(f"{where}: label {plain[:40]!r} is not one of 0, 1, true, false; correct it")
    return plain in _TRUE


def _check_count(path: Path, count: int, what: str) -> None:
    if count < 2:
        raise CseError(f"{path}: {count} {what[:-1] if count == 1 else what}; a task needs at least 2, add some")


def _check_labels(path: Path, labels: Sequence[str]) -> None:
    if len(set(labels)) == 1:
        raise CseError(f"{path}: all texts have the label {labels[0][:40]!r}; add texts with another label")
    _check_count(path, len(labels), "test rows")
    if len(set(labels)) == len(labels):
        raise CseError(f"{path}: no label has two test rows, so no text has another of its label; add texts")
