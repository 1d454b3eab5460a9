"""Tables in files: csv, tsv, jsonl and parquet, streamed row by row with their line numbers.

* csv: a header, fields separated by commas, ``"`` around fields that hold commas, quotes (doubled) or line breaks.
* tsv: a header, fields separated by tabs; quotes are ordinary text.
* jsonl: one JSON object per line; the columns are the keys of the first.
* parquet: columns of the file; the number of a row stands for its line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.data.text_files import text_lines
from cse.errors import CseError

BLANK: tuple[Any, ...] = ()
Values = Sequence[Any]
Numbered = tuple[int, Values]
_LONGEST_FIELD = 2**31 - 1
_PARQUET_ROWS = 8192
_ADVICE = {
    ".csv": "put quotes around fields that hold commas",
    ".tsv": "take tabs and line breaks out of the sentences",
}


@dataclass(frozen=True)
class Table:
    """A table that is read on demand.

    Attributes:
        path: the file.
        columns: names of the columns in the file.
        rows: given names of columns, yields ``(line, values)`` per row; ``BLANK`` stands for a blank line.
    """

    path: Path
    columns: list[str]
    rows: Callable[[Sequence[str]], Iterator[Numbered]]

    def pick(self, names: Sequence[str]) -> Iterator[Numbered]:
        """Return the rows with the values of the named columns, see ``rows``.

        Raises:
            CseError: a name that several columns of the file have; while reading, see ``open_table``.
        """
        for name in names:
            if self.columns.count(name) > 1:
                raise CseError(f"{self.path}: {self.columns.count(name)} columns {name!r}; give each a name of its own")
        return self.rows(names)


def open_table(path: Path, encoding: str = "utf-8") -> Table:
    """Open a table by the ending of its name.

    Raises:
        CseError: an empty file, an unknown ending; while reading: a ragged row, a broken line, undecodable bytes.
    """
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        known = ", ".join(sorted(OPENERS))
        raise CseError(f"{path}: cannot read columns from a {path.suffix or 'nameless'} file; use one of {known}")
    refuse_empty(path)
    return opener(path, encoding)


def refuse_empty(path: Path) -> None:
    """Raise ``CseError`` for a file without a byte."""
    if path.stat().st_size == 0:
        raise CseError(f"{path}: empty file; put rows into it or point the setting elsewhere")


def _open_delimited(path: Path, encoding: str) -> Table:
    kind = path.suffix.lower()

    def records() -> Iterator[Numbered]:
        return delimited_records(text_lines(path, encoding), kind, str(path))

    header = next((record for _, record in records() if record), None)
    if header is None:
        raise CseError(f"{path}: empty file; expected a header line with the names of the columns, then rows")
    columns = header_columns(header)

    def rows(names: Sequence[str]) -> Iterator[Numbered]:
        places = [columns.index(name) for name in names]
        below_header = False
        for number, record in records():
            if not record:
                yield number, BLANK
            elif not below_header:
                below_header = True
            else:
                check_width(record, columns, kind, f"{path}:{number}")
                yield number, [record[place] for place in places]

    return Table(path, columns, rows)


def header_columns(header: Values) -> list[str]:
    """Return the names of columns that a header gives."""
    return [name.strip() for name in header]


def check_width(record: Values, columns: Sequence[str], kind: str, where: str) -> None:
    """Raise ``CseError`` where a record of a csv or tsv file has more or fewer fields than its header."""
    if len(record) != len(columns):
        raise CseError(f"{where}: {len(record)} fields, the header has {len(columns)}; {_ADVICE[kind]}")


def delimited_records(lines: Iterable[str], kind: str, shown: str, first: int = 1) -> Iterator[Numbered]:
    """Yield each record of a csv or tsv text with the number of its first line.

    Args:
        lines: without their line ends.
        kind: ``.csv``: line breaks inside quotes belong to the field; ``.tsv``: a line is a record.
        shown: name of the file in errors.
        first: number of the first line.

    Raises:
        CseError: a broken record of a csv.
    """
    if kind == ".tsv":
        for number, line in enumerate(lines, start=first):
            yield number, line.split("\t") if line.strip() else BLANK
        return
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
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


def _open_jsonl(path: Path, encoding: str) -> Table:
    def records() -> Iterator[tuple[int, dict[str, Any] | None]]:
        for number, line in enumerate(text_lines(path, encoding), start=1):
            yield number, _json_object(path, number, line) if line.strip() else None

    first = next((record for _, record in records() if record is not None), None)
    if first is None:
        raise CseError(f"{path}: empty file; expected one JSON object per line")

    def rows(names: Sequence[str]) -> Iterator[Numbered]:
        for number, record in records():
            yield number, BLANK if record is None else [record.get(name) for name in names]

    return Table(path, list(first), rows)


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CseError(f"{path}:{number}: not valid JSON ({error}); expected one object per line") from None
    if not isinstance(record, dict):
        raise CseError(f"{path}:{number}: expected a JSON object with named columns, found {type(record).__name__}")
    return record


def _open_parquet(path: Path, encoding: str) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid:
        raise CseError(f"{path}: not a parquet file, or cut off; write it again") from None

    def rows(names: Sequence[str]) -> Iterator[Numbered]:
        number = 0
        try:
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(names)):
                for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    number += 1
                    yield number, values
        except (pa.ArrowInvalid, OSError) as error:
            raise CseError(f"{path}:{number + 1}: cannot be read ({str(error).splitlines()[0]})") from None

    return Table(path, list(file.schema_arrow.names), rows)


OPENERS = {".csv": _open_delimited, ".tsv": _open_delimited, ".jsonl": _open_jsonl, ".parquet": _open_parquet}
