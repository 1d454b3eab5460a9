r"""Lines of text files, with the same rules for line ends, byte order marks and undecodable bytes everywhere.

A line ends only at ``\n``, ``\r\n`` or ``\r``: U+0085, U+2028 and the like are ordinary characters of a sentence. A
byte order mark at the start of a UTF-8 file is not part of its first line.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cse.errors import CseError

MARK = "\ufeff"
_ADVICE = "save the file as UTF-8"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def text_lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file without their line ends; the first has number 1.

    Args:
        path: the file.
        encoding: value of ``data.encoding``; None: UTF-8, for files that the setting does not cover.

    Raises:
        CseError: bytes that do not decode, with file, line and byte.
        OSError: the file is unreadable.
    """
    advice = _ADVICE
    if encoding is not None:
        advice = "set data.encoding to the encoding of the file (latin-1, cp1252, utf-16, ...) or save it as UTF-8"
    with path.open("rb") as file:
        yield from file_lines(file, str(path), encoding or "utf-8", advice)


def file_lines(file: BinaryIO, shown: str, encoding: str = "utf-8", advice: str = _ADVICE) -> Iterator[str]:
    """Yield the lines of an open file, positioned at its start, without their line ends.

    Raises:
        CseError: bytes that do not decode, with file, line and byte.
    """
    marked = codecs.lookup(encoding).name == "utf-8"
    for line in decoded_lines(file, shown, encoding, advice=advice):
        if marked:
            marked, line = False, line.removeprefix(MARK)
            if not line:
                continue
        yield without_end(line)


def decoded_lines(
    file: BinaryIO, shown: str, encoding: str = "utf-8", *, first: int = 1, advice: str = _ADVICE
) -> Iterator[str]:
    """Yield the lines of an open file with their line ends and any byte order mark.

    Args:
        file: positioned at the start of a line.
        shown: name of the file in errors.
        encoding: encoding of the bytes.
        first: number of the first line.
        advice: remedy for a byte that does not decode.

    Raises:
        CseError: bytes that do not decode, with file, line and byte.
    """
    try:
        text = io.TextIOWrapper(file, encoding, errors="surrogateescape", newline="")
        for number, line in enumerate(text, start=first):
            if not line.isascii() and (found := _ESCAPED_BYTE.search(line)):
                byte = ord(found.group()) - 0xDC00
                raise CseError(f"{shown}:{number}: byte 0x{byte:02x} is not {encoding}; {advice}")
            yield line
    except UnicodeError:
        raise CseError(f"{shown}: not {encoding}; {advice}") from None


def without_end(line: str) -> str:
    """Return a line without its line end."""
    return line.rstrip("\r\n")
