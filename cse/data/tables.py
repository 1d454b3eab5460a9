"""Tables in files: csv, tsv, jsonl and parquet, streamed row by row with their line numbers.

* csv: a header, fields separated by commas, or by what separates the header's names: semicolons, tabs or bars; ``"``
  around fields that hold separators, quotes (doubled) or line breaks.
* tsv: a header, fields separated by tabs; quotes are ordinary text.
* jsonl: one JSON object per line; the columns are the keys of the first object.
* parquet: columns of the file; row numbers serve as line numbers.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cse.data.checks import check_columns, no_rows
from cse.data.parquet import batch_rows, open_parquet, parquet_batches
from cse.data.text_files import text_lines
from cse.errors import CseError

Format = Literal["txt", "csv", "tsv", "jsonl", "parquet"]
FORMATS: dict[str, Format] = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
TABLES = sorted(ending for ending, kind in FORMATS.items() if kind != "txt")

BLANK: tuple[Any, ...] = ()
Numbered = tuple[int, Any]
_LONGEST_FIELD = 1 << 24  # characters; stops an unclosed quote from reading the whole file into memory
_SEPARATORS = ",;\t|"
_ADVICE = {
    "csv": "put quotes around fields that hold {}",
    "tsv": "remove tabs and line breaks from the sentences",
}
_IN_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


class Header(NamedTuple):
    """The columns' names of a table, and what separates the fields of a csv file."""

    columns: list[str]
    separator: str = ","


@dataclass(frozen=True)
class TableFile:
    """An open table; its rows can be read once.

    Attributes:
        shown: name of the file in errors.
        header: names of all columns.
        rows: given column names, yields ``(line, values)`` per row, with ``BLANK`` for a blank line.
        schema: Arrow schema of a parquet file.
    """

    shown: str
    header: Header
    rows: Callable[[Sequence[str]], Iterator[Numbered]]
    schema: Any = None

    @property
    def columns(self) -> list[str]:
        """Names of all columns."""
        return self.header.columns

    def pick(self, names: Sequence[str], texts: int = 0) -> Iterator[Numbered]:
        """Return the rows with the values of the named columns, see ``rows``.

        Args:
            names: column names.
            texts: how many of the first columns must hold text, as declared by a parquet file.

        Raises:
            CseError: a duplicate column name or a column of another type; while reading: a ragged row, a broken line,
                undecodable bytes.
        """
        check_columns(self.shown, self.columns, names, self.schema, texts)
        return self.rows(names)


def open_table(path: Path, encoding: str | None = None) -> TableFile:
    """Open a table; its suffix determines the format.

    Args:
        path: a csv, tsv, jsonl or parquet file.
        encoding: encoding of text, see ``text_lines``.

    Raises:
        CseError: an unknown suffix, a file without a header or an object, a broken first record, or not parquet.
    """
    kind = FORMATS.get(path.suffix.lower(), "txt")
    if kind == "txt":
        known = ", ".join(TABLES)
        raise CseError(f"{path}: cannot read columns from a {path.suffix or 'suffixless'} file; use one of {known}")
    if kind == "parquet":
        return _parquet_table(path)
    table = text_table(text_lines(path, encoding), kind, str(path))
    if table is None:
        raise no_rows(str(path))
    return table


def text_table(
    lines: Iterable[str], kind: Format, shown: str, first: int = 1, header: Header | None = None
) -> TableFile | None:
    """Read a csv, tsv or jsonl table lazily from its lines.

    Args:
        lines: lines without their line ends.
        kind: ``csv``, ``tsv`` or ``jsonl``.
        shown: name of the file in errors.
        first: number of the first line.
        header: of a csv or tsv file, if the lines start below it.

    Returns:
        The table, or None if the lines hold no header or no object.

    Raises:
        CseError: a broken first record.
    """
    separator = header.separator if header else ","
    if kind == "csv" and header is None:
        separator, lines = _separator_of(lines)
    records = (
        json_records(lines, shown, first)
        if kind == "jsonl"
        else delimited_records(lines, kind, shown, first, separator=separator)
    )
    above: list[Numbered] = []
    if header is None:
        for head in records:
            above.append(head)
            if head[1] is not BLANK:
                break
        else:
            return None
        names = list(head[1]) if kind == "jsonl" else [name.strip() for name in above.pop()[1]]
        header = Header(names, separator)
    columns = header.columns

    def rows(names: Sequence[str]) -> Iterator[Numbered]:
        # an object may have a key that the first one lacks
        places = [] if kind == "jsonl" else [columns.index(name) for name in names]
        for number, record in chain(above, records):
            if record is BLANK:
                yield number, BLANK
            elif kind == "jsonl":
                yield number, [record.get(name) for name in names]
            elif len(record) != len(columns):
                raise CseError(
                    f"{shown}:{number}: {len(record)} fields, but the header has {len(columns)}; "
                    f"{_ADVICE[kind].format(_IN_WORDS[separator])}"
                )
            else:
                yield number, [record[place] for place in places]

    return TableFile(shown, header, rows)


def _separator_of(lines: Iterable[str]) -> tuple[str, Iterable[str]]:
    """Return what separates the fields of a csv file, and its lines again.

    It is the candidate that stands most often outside quotes in the first line that is not blank, else the comma.
    """
    lines, above = iter(lines), []
    for line in lines:
        above.append(line)
        if line.strip():
            break
    bare = "".join(above[-1].split('"')[::2]) if above else ""
    return max(_SEPARATORS, key=bare.count), chain(above, lines)


def delimited_records(
    lines: Iterable[str], kind: Format, shown: str, first: int = 1, *, separator: str = ","
) -> Iterator[Numbered]:
    """Yield each csv or tsv record with the number of its first line.

    Args:
        lines: lines without their line ends.
        kind: ``csv`` (line breaks inside quotes belong to the field) or ``tsv`` (a line is a record).
        shown: name of the file in errors.
        first: number of the first line.
        separator: of the fields of a csv file.

    Raises:
        CseError: a broken csv record.
    """
    if kind == "tsv":
        for number, line in enumerate(lines, start=first):
            yield number, line.split("\t") if line.strip() else BLANK
        return
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader((f"{line}\n" for line in lines), strict=True, delimiter=separator)
    while True:
        number = first + reader.line_num
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise CseError(
                f"{shown}:{number}: broken csv record ({error}); close every quoted field, double the quotes inside"
            ) from None
        blank = not record or (len(record) == 1 and not record[0].strip())
        yield number, BLANK if blank else record


def json_records(lines: Iterable[str], shown: str, first: int = 1) -> Iterator[Numbered]:
    """Yield the object on each line with its line number.

    Raises:
        CseError: a line is not a JSON object.
    """
    for number, line in enumerate(lines, start=first):
        if not line.strip():
            yield number, BLANK
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CseError(f"{shown}:{number}: not valid JSON ({error}); expected one object per line") from None
        if not isinstance(record, dict):
            found = type(record).__name__
            raise CseError(f"{shown}:{number}: expected a JSON object with named columns, found {found}")
        yield number, record


def _parquet_table(path: Path) -> TableFile:
    file = open_parquet(path, str(path))

    def rows(names: Sequence[str]) -> Iterator[Numbered]:
        for first, batch in parquet_batches(file, str(path), names):
            yield from batch_rows(batch, names, first)

    return TableFile(str(path), Header(list(file.schema_arrow.names)), rows, file.schema_arrow)
