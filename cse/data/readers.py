"""Read the rows of a view from a user's file: find the file, its columns and sentences.

A row of the view ``sentences`` has one sentence, ``pairs`` two, ``triplets`` three (anchor, positive, hard negative),
``labelled`` two and an NLI label, and ``categories`` one and any label. A file may have more columns than the view
needs. ``sentences`` reads the first usual column that the file has, so it reads the anchors of a triplets file.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from cse.data.checks import check_column, check_text, column_hint, listed, no_rows, required_text
from cse.data.labels import read_label
from cse.data.tables import FORMATS, open_table
from cse.data.text_files import text_lines
from cse.errors import CseError, nearest

USUAL_COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "sentences": (("text",), ("sentence",), ("sent0",), ("sentence1",), ("anchor",), ("premise",)),
    "pairs": (
        ("sent0", "sent1"),
        ("sentence1", "sentence2"),
        ("anchor", "positive"),
        ("premise", "entailment"),
        ("query", "document"),
    ),
    "triplets": (
        ("sent0", "sent1", "hard_neg"),
        ("anchor", "positive", "negative"),
        ("premise", "entailment", "contradiction"),
    ),
    "labelled": (
        ("sentence1", "sentence2", "gold_label"),
        ("sentence1", "sentence2", "label"),
        ("premise", "hypothesis", "label"),
        ("premise", "hypothesis", "gold_label"),
        ("sent0", "sent1", "label"),
    ),
    "categories": tuple((text, label) for label in ("category", "label", "intent") for text in ("text", "sentence")),
}
LABELLED = "labelled"


def read_category(value: Any, where: str) -> str | None:
    """Return any label as text, or None for a blank one.

    Raises:
        CseError: neither text nor a whole number; ``where`` gives file and line.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise CseError(f"{where}: label {str(value)[:40]!r} is neither text nor a whole number; correct it")
    return (check_text(str(value), where) or "").strip() or None


LABEL_OF: dict[str, Callable[[Any, str], str | None]] = {LABELLED: read_label, "categories": read_category}


class Row(NamedTuple):
    """One row of a file; a missing sentence or label is ``None``.

    ``line`` is the name of the file where a folder holds one document per file. ``label`` is empty in views without
    labels, ``group`` names the label or document of a row that keeps it, and ``fault`` is a reason to drop the row.
    """

    line: int | str
    texts: tuple[str | None, ...]
    label: str | None = ""
    group: str = ""
    fault: str = ""


def data_files(folder: Path) -> list[Path]:
    """Return the data files directly in a folder, sorted by name."""
    paths = (folder / name for name in contents(folder))
    return [path for path in paths if path.suffix.lower() in FORMATS and path.is_file()]


def contents(folder: Path) -> list[str]:
    """Return the sorted names in a folder that pass ``is_data_name``."""
    return sorted(path.name for path in folder.iterdir() if is_data_name(path.name))


def is_data_name(name: str) -> bool:
    """Return whether a file of this name may hold data; README files and dot files never do."""
    return not name.startswith(".") and PurePath(name).stem.lower() != "readme"


def check_exists(path: Path, setting: str) -> None:
    """Raise ``CseError`` if ``path`` does not exist; the message gives the nearest name or the broken link."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise CseError(
                f"{path}: a link to {path.readlink()}, which does not exist; fix it (or change {setting})"
            ) from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CseError(f"{path}: circular links; fix them (or change {setting})") from None
    else:
        return
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    match = nearest(path.name, beside)
    raise CseError(f"{path}: no such file or folder{match or '; put data there'} (or change {setting})")


def find_data_file(path: Path, setting: str = "data.train_path") -> Path:
    """Return ``path``, or the only data file in it if it is a folder.

    Raises:
        CseError: no such path, a folder with no data file or several, or an unknown suffix.
    """
    check_exists(path, setting)
    if path.is_dir():
        found = data_files(path)
        if len(found) == 1:
            return found[0]
        if found:
            raise CseError(f"{path}: several data files ({listed(f.name for f in found)}); name one in {setting}")
        others = contents(path)
        there = f" (only {listed(others)})" if others else ""
        raise CseError(f"{path}: no {', '.join(FORMATS)} file in this folder{there}; put one there or set {setting}")
    if path.suffix.lower() not in FORMATS:
        raise CseError(f"{path}: cannot read {path.suffix or 'suffixless'} files; use one of {', '.join(FORMATS)}")
    return path


def read_rows(path: Path, view: str, columns: Sequence[str] | None = None, encoding: str = "utf-8") -> Iterator[Row]:
    """Stream the rows of a txt, csv, tsv, jsonl or parquet file.

    Args:
        path: a file, see ``find_data_file``.
        view: ``sentences``, ``pairs``, ``triplets``, ``labelled`` or ``categories``.
        columns: column names in the order of the view; ``None``: the usual names.
        encoding: encoding of text files.

    Raises:
        CseError: anything wrong with the file, as ``file:line: problem; remedy``. Wrong column names raise at the call,
            the rest while reading.
    """
    if path.suffix.lower() == ".txt":
        if columns is not None:
            raise CseError(f"{path}: a txt file has no named columns; set data.columns: null or use a csv file")
        rows = _tab_separated(path, view, encoding)
        if view == "sentences":
            rows = (Row(number, (line,)) for number, line in enumerate(text_lines(path, encoding), start=1))
    else:
        table = open_table(path, encoding)
        names = choose_columns(path, table.columns, view, columns)
        label_of = LABEL_OF.get(view)
        records = table.pick(names, len(names) - (label_of is not None))
        rows = (make_row(path, line, values, len(names), label_of) for line, values in records)
    return _refuse_none(path, rows)


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Read one column of a csv, tsv, jsonl or parquet file; an empty field counts as text.

    Args:
        path: a UTF-8 text file, or parquet.
        column: name of the column; ``None``: the first usual sentence column that the file has.

    Raises:
        CseError: anything wrong with the file, with the line; a row without text, or no rows.
    """
    return [text for (text,) in _read_columns(path, column, [])]


def read_texts_and_names(path: Path, column: str | None, names: str) -> tuple[list[str], list[str]]:
    """Read a text column like ``read_texts``, and column ``names`` beside it, which must not be blank."""
    texts, beside = zip(*_read_columns(path, column, [names]), strict=True)
    return list(texts), list(beside)


def _read_columns(path: Path, column: str | None, beside: list[str]) -> list[tuple[str, ...]]:
    table = open_table(path)
    (text,) = choose_columns(path, table.columns, "sentences", None if column is None else [column], "--column")
    if beside:
        choose_columns(path, table.columns, "sentences", beside, "--domain-column")
    names = [text, *beside]
    rows = [
        tuple(
            required_text(value, name, f"{path}:{line}", blank=name == text)
            for value, name in zip(values, names, strict=True)
        )
        for line, values in table.pick(names, len(names))
        if values
    ]
    if not rows:
        raise no_rows(str(path))
    return rows


def choose_columns(
    path: Path, there: Sequence[str], view: str, columns: Sequence[str] | None, setting: str = "data.columns"
) -> tuple[str, ...]:
    """Return the names of the columns to read; errors name ``setting``.

    Raises:
        CseError: a missing column, with the nearest name and the available columns.
    """
    if columns is not None:
        for name in columns:
            check_column(name, there, str(path), setting)
        return tuple(columns)
    usual = USUAL_COLUMNS[view]
    for names in usual:
        if all(name in there for name in names):
            return names
    closest = max(usual, key=lambda names: sum(name in there for name in names))
    missing = next(name for name in closest if name not in there)
    purpose = f" for data.view: {view}" if setting == "data.columns" else ""
    raise CseError(f"{path}: no column {missing!r}{purpose}{column_hint(missing, there)}; name yours in {setting}")


def _tab_separated(path: Path, view: str, encoding: str) -> Iterator[Row]:
    """Read rows from the first columns of a txt file; skip a first line of usual names as a header."""
    width = len(USUAL_COLUMNS[view][0])
    for number, line in enumerate(text_lines(path, encoding), start=1):
        texts = tuple(line.split("\t"))[:width]
        if not line.strip():
            yield make_row(path, number, (), width)
        elif len(texts) < width:
            raise CseError(
                f"{path}:{number}: a line of a txt file is one sentence, but data.view: {view} needs {width}, "
                "separated by tabs; use a csv file or set data.view: sentences"
            )
        elif number > 1 or texts not in USUAL_COLUMNS[view]:
            yield make_row(path, number, texts, width, LABEL_OF.get(view))


def _refuse_none(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    row = None
    for row in rows:
        yield row
    if row is None:
        raise no_rows(str(path))


def make_row(
    path: Path,
    line: int,
    values: Sequence[Any],
    width: int,
    label_of: Callable[[Any, str], str | None] | None = None,
) -> Row:
    """Make a row from a record's ``width`` values (no values for a blank line).

    Args:
        path: the file.
        line: number of the record's first line.
        values: the record.
        width: number of its values.
        label_of: reads the last value as a label; None: all are text.

    Raises:
        CseError: a value that is not text or an unknown label, with the line.
    """
    where = f"{path}:{line}"
    if not values:
        return Row(line, (None,) * width)
    texts = tuple(check_text(value, where) for value in (values if label_of is None else values[: width - 1]))
    return Row(line, texts, "" if label_of is None else label_of(values[-1], where))
