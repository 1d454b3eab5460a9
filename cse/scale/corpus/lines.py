"""The rows of a text file of a corpus, and the spans of bytes that hold so many of them each.

Lines, records and objects are read as everywhere in ``cse`` (``cse.data``). What is wrong with a file is found while it
is split, before the first vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from cse.data.tables import Format, text_table
from cse.data.text_files import MARK, decoded_lines, file_lines, without_end
from cse.scale.corpus.columns import Columns, check_names


class Span(NamedTuple):
    """A span of a file: bytes ``start`` to ``end``, ``rows`` in it, and the number of its first line (from 1)."""

    start: int
    end: int
    rows: int
    line: int


def split_text(
    file: BinaryIO, shown: str, rows: int, read: Callable[[Iterator[str]], Iterable[object]]
) -> Iterator[Span]:
    """Split a UTF-8 file after every ``rows`` rows; the last span may have fewer. A file without a row gives none.

    A byte order mark belongs to no span.

    Args:
        file: stands at its start.
        shown: name of the file in errors.
        rows: of a span.
        read: makes rows of lines, which it takes one by one: none behind the row that it yields.

    Raises:
        CseError: bytes that are not UTF-8, with file and line; what ``read`` raises.
    """
    start = end = last = held = 0
    line = 1

    def counted() -> Iterator[str]:
        nonlocal start, end, last
        for text in decoded_lines(file, shown):
            if end == 0 and text.startswith(MARK):
                start = end = len(MARK.encode())
                text = text.removeprefix(MARK)
            if text:
                end += len(text) if text.isascii() else len(text.encode())
                last += 1
                yield without_end(text)

    for _ in read(counted()):
        held += 1
        if held == rows:
            yield Span(start, end, rows, line)
            start, line, held = end, last + 1, 0
    if held:
        yield Span(start, end, held, line)


def text_rows(
    lines: Iterable[str], kind: Format, columns: Columns, shown: str, first: int = 1, header: list[str] | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the number of the line and the values (text, id if it is named) of each row; blank records are none.

    Args:
        lines: without their line ends.
        kind: ``txt``, ``csv``, ``tsv`` or ``jsonl``.
        columns: names of the columns to read.
        shown: name of the file in errors.
        first: number of the first line.
        header: names of all columns, where the lines are a part of a csv or tsv file without its header.

    Raises:
        CseError: what ``text_table`` raises, and a column that is not there.
    """
    if kind == "txt":
        yield from enumerate(zip(lines), start=first)
    elif table := text_table(lines, kind, shown, first, header):
        check_names(columns, table.columns, shown)
        for number, values in table.pick(columns.names, 1):
            if values:
                yield number, values


def read_header(file: BinaryIO, kind: Format, shown: str) -> list[str] | None:
    """Return the names of the columns of a csv or tsv file."""
    table = text_table(file_lines(file, shown), kind, shown)
    return table and table.columns
