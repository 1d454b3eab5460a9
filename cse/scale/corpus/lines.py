"""Rows of a text file of a corpus, and how the file is split into byte spans of equally many rows.

``cse.data`` reads the lines, records and objects. Splitting reads every row, so errors show before the first vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from cse.data.read import MARK, Format, Header, decoded_lines, file_lines, text_table, without_end
from cse.scale.corpus.columns import Columns, check_names

ENCODING = "give the encoding of the file (--encoding latin-1, cp1252, utf-16, ...) or save it as UTF-8"


class Span(NamedTuple):
    """Bytes ``start`` to ``end`` of a file, how many rows they hold, and the number of the first line (from 1)."""

    start: int
    end: int
    rows: int
    line: int


def split_text(
    file: BinaryIO, shown: str, rows: int, read: Callable[[Iterator[str]], Iterable[object]]
) -> Iterator[Span]:
    """Split a UTF-8 file after every ``rows`` rows; the last span may have fewer.

    No span includes the byte order mark, and a file without rows has no spans.

    Args:
        read: turns lines into rows; when it yields a row it must have taken no line after it.
    """
    start = end = last = held = 0
    line = 1

    def counted() -> Iterator[str]:
        nonlocal start, end, last
        for text in decoded_lines(file, shown, advice=ENCODING):
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


def split_rows(read: Iterable[object], rows: int) -> Iterator[Span]:
    """Split a file of which no part can be read by itself after every ``rows`` rows; bounds are row numbers, from 0."""
    total = sum(1 for _ in read)
    for start in range(0, total, rows):
        held = min(rows, total - start)
        yield Span(start, start + held, held, start + 1)


def text_rows(
    lines: Iterable[str],
    kind: Format,
    columns: Columns,
    shown: str,
    first: int = 1,
    header: Header | None = None,
    *,
    whole: bool = True,
) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the values (those of ``Columns.names``) of each row; skip blank records.

    Args:
        lines: without their line ends.
        kind: ``txt``, ``csv``, ``tsv`` or ``jsonl``.
        first: number of the first line.
        header: of a csv or tsv file, if the lines come from below it.
    """
    if kind == "txt":
        yield from enumerate(zip(lines), start=first)
    elif table := text_table(lines, kind, shown, first, header, whole=whole):
        check_names(columns, table.columns, shown)
        for number, values in table.pick(columns.names, 1):
            if values:
                yield number, values


def read_header(file: BinaryIO, kind: Format, shown: str) -> Header | None:
    """Return the header of a csv or tsv file."""
    table = text_table(file_lines(file, shown), kind, shown)
    return None if table is None else table.header
