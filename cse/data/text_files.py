r"""Lines of text files: one rule for line ends, byte order marks and undecodable bytes.

A line ends at ``\n``, ``\r\n`` or ``\r`` and nowhere else: U+0085, U+2028 and their like are ordinary characters of a
sentence. A byte order mark at the start of a UTF-8 file is not part of its first line.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from cse.errors import CseError

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def text_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file without their line ends; the first has number 1.

    Raises:
        CseError: bytes that are not in the encoding, with file, line and byte.
        OSError: the file cannot be read.
    """
    codec = _codec(encoding)
    try:
        with path.open(encoding=codec, newline=None) as file:
            for line in file:
                yield line[:-1] if line.endswith("\n") else line
    except UnicodeError:
        raise _undecodable(path, encoding) from None


def _codec(encoding: str) -> str:
    name = codecs.lookup(encoding).name
    return "utf-8-sig" if name == "utf-8" else name


def _undecodable(path: Path, encoding: str) -> CseError:
    """Find the first byte that does not decode, and say where it is."""
    advice = "set data.encoding to the encoding of the file (latin-1, cp1252, utf-16, ...) or save it as UTF-8"
    try:
        with path.open(encoding=_codec(encoding), errors="surrogateescape", newline=None) as file:
            for number, line in enumerate(file, start=1):
                if found := _ESCAPED_BYTE.search(line):
                    byte = ord(found.group()) - 0xDC00
                    return CseError(f"{path}:{number}: byte 0x{byte:02x} is not {encoding}; {advice}")
    except UnicodeError:
        pass
    return CseError(f"{path}: not {encoding}; {advice}")
