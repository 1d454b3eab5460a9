r"""Where the lines of a text file end, found in one pass with constant memory.

A line ends at ``\n``, ``\r\n`` or ``\r``, as everywhere in ``cse`` (``cse.data.text_files``). What is wrong with a file
is found here, before the first vector: bytes that are not UTF-8 and, in jsonl, lines that hold no usable object.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError

_BLOCK = 1 << 20

# takes the decoded lines of a block and the number of its first; returns which of them are rows
Check = Callable[[list[str], int], NDArray[np.bool_]]


class Cut(NamedTuple):
    """A stretch of a file: bytes ``start`` to ``end``, ``rows`` in it, and the number of its first line (from 1)."""

    start: int
    end: int
    rows: int
    line: int


def cut_lines(file: BinaryIO, shown: str, rows: int, check: Check | None = None) -> Iterator[Cut]:
    """Cut a file after every ``rows`` rows; the last stretch may have fewer. A file without a row gives none.

    Args:
        file: UTF-8 bytes; a byte order mark belongs to no line.
        shown: name of the file in errors.
        rows: of a stretch.
        check: says which lines are rows; None: every line is, empty ones too.

    Raises:
        CseError: bytes that are not UTF-8, with file and line; what ``check`` raises.
    """
    start, held, line, first = 0, 0, 1, 1  # of the open stretch: its start, rows and line; line numbers before a block
    end = 0
    for offset, block in _blocks(file):
        if offset == 0 and block.startswith(codecs.BOM_UTF8):
            offset, block = len(codecs.BOM_UTF8), block[len(codecs.BOM_UTF8) :]
            start = offset
        text = decoded(block, shown, first)
        ends = _line_ends(block)
        counts = np.ones(len(ends), bool) if check is None else check(split_lines(text), first)
        total = held + np.cumsum(counts)
        full = np.flatnonzero(counts & (total % rows == 0))
        for index in full:
            end = offset + int(ends[index])
            yield Cut(start, end, rows, line)
            start, line = end, first + int(index) + 1
        if len(ends):
            held = int(total[-1]) - rows * len(full)
        first += len(ends)
        end = offset + len(block)
    if held:
        yield Cut(start, end, held, line)


def file_lines(file: BinaryIO, shown: str) -> Iterator[str]:
    """Yield the lines of a file without their ends, as far as they are asked for.

    Raises:
        CseError: bytes that are not UTF-8, with file and line.
    """
    first = 1
    for offset, block in _blocks(file):
        lines = split_lines(decoded(block.removeprefix(codecs.BOM_UTF8) if offset == 0 else block, shown, first))
        yield from lines
        first += len(lines)


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text without their ends; a last line without an end is one too."""
    if "\r" not in text:
        lines = text.split("\n")
        return lines if lines[-1] else lines[:-1]
    return [line[:-1] if line.endswith("\n") else line for line in io.StringIO(text, newline=None)]


def decoded(block: bytes, shown: str, first: int) -> str:
    """Return the text of whole lines, of which the first has number ``first``.

    Raises:
        CseError: bytes that are not UTF-8, with file and line.
    """
    try:
        return block.decode()
    except UnicodeDecodeError as error:
        number = first + len(_line_ends(block[: error.start] + b".")) - 1
        byte = block[error.start]
        raise CseError(f"{shown}:{number}: byte 0x{byte:02x} is not utf-8; save the file as UTF-8") from None


def json_rows(shown: str, accept: Callable[[dict[str, Any], str], None]) -> Check:
    """Return a check of jsonl: blank lines are no rows, each other line is an object that ``accept`` does not refuse.

    Args:
        shown: name of the file in errors.
        accept: called with each object and its place ``file:line``.
    """

    def check(lines: list[str], first: int) -> NDArray[np.bool_]:
        counts = np.ones(len(lines), bool)
        for index, line in enumerate(lines):
            if line.strip():
                where = f"{shown}:{first + index}"
                accept(json_object(line, where), where)
            else:
                counts[index] = False
        return counts

    return check


def json_object(line: str, where: str) -> dict[str, Any]:
    """Parse a line of jsonl.

    Raises:
        CseError: no JSON, or no object.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CseError(f"{where}: not valid JSON ({error}); expected one object a line") from None
    if not isinstance(record, dict):
        raise CseError(f"{where}: expected a JSON object with named columns, found {type(record).__name__}")
    return record


def _blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    r"""Yield runs of whole lines with their offsets; a ``\r\n`` is never parted."""
    offset, rest = 0, b""
    while chunk := file.read(_BLOCK):
        block = rest + chunk
        # a \r at the very end may be half of a \r\n
        cut = max(block.rfind(b"\n"), block.rfind(b"\r", 0, len(block) - 1)) + 1
        if cut:
            yield offset, block[:cut]
        offset, rest = offset + cut, block[cut:]
    if rest:
        yield offset, rest


def _line_ends(block: bytes) -> NDArray[np.int64]:
    """Return the offset behind each line of a block (n,); bytes behind the last line end are a line too."""
    data = np.frombuffer(block, np.uint8)
    is_end = data == ord("\n")
    if b"\r" in block:
        is_end[:-1] |= (data[:-1] == ord("\r")) & (data[1:] != ord("\n"))
        is_end[-1] |= data[-1] == ord("\r")
    ends = np.flatnonzero(is_end) + 1
    if len(block) and (not len(ends) or ends[-1] != len(block)):
        ends = np.append(ends, len(block))
    return ends
