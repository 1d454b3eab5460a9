"""Checks of columns and values, shared by all readers so that their errors agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from cse.errors import CseError, nearest

MOST_CHARACTERS = 100_000  # per sentence; a longer text is not a sentence, and tokenising it takes gigabytes
_SHOWN = 8
_SURROGATE = re.compile("[\ud800-\udfff]")


def check_column(name: str, there: Sequence[str], shown: str, setting: str) -> None:
    """Raise ``CseError`` for a missing column, with the nearest name; ``setting`` is the setting that names it."""
    if name not in there:
        raise CseError(f"{shown}: no column {name!r} ({setting}){column_hint(name, there)}")


def column_hint(name: str, there: Sequence[str]) -> str:
    """Return a hint with the nearest name and the available columns."""
    return f"{nearest(name, there)}; the columns are {listed(there)}{headless(there)}"


def headless(names: Iterable[str]) -> str:
    """Return a hint if the names of columns look like a row: the file has no header then."""
    rows = any(re.fullmatch(r"[-+]?[0-9.,]+", name) or len(name.split()) > 3 for name in names)
    return "; if these are a row, give the file a first line with the names of its columns" if rows else ""


def listed(names: Iterable[str]) -> str:
    """Return the first few names, shortened, and the number of others."""
    short = [name if len(name) <= 40 else f"{name[:37]}..." for name in names]
    more = f" and {len(short) - _SHOWN} more" if len(short) > _SHOWN else ""
    return ", ".join(short[:_SHOWN]) + more


def check_text(value: Any, where: str) -> str | None:
    """Return a value if it is text or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise CseError(f"{where}: expected text, found {type(value).__name__} {str(value)[:40]!r}; fix or drop the row")
    if not value.isascii() and _SURROGATE.search(value):
        raise CseError(f"{where}: half of a surrogate pair; write the character in full")
    return value


def required_text(value: Any, column: str, where: str, *, blank: bool = True) -> str:
    """Return a value if it is text, not blank unless ``blank`` is true; otherwise raise ``CseError``."""
    text = check_text(value, where)
    if text is None or not (blank or text.strip()):
        raise CseError(f"{where}: no text in column {column!r}; fill it in or drop the row")
    return text


def saying_nothing(rows: Sequence[object], what: str) -> str:
    """Say how many rows say nothing, and which come first."""
    count = "1 row says" if len(rows) == 1 else f"{len(rows):,} rows say"
    return f"{count} nothing (empty, punctuation, N/A): {what} {listed(map(str, rows))}"


def titled(title: str | None, text: str) -> str:
    """Return a title, a blank and a text; the text alone where it starts with the title."""
    head, body = (title or "").strip(), text.strip()
    return body if body.startswith(head) else f"{head} {body}".strip()


def no_rows(shown: str) -> CseError:
    """Return the error for a file without rows."""
    return CseError(f"{shown}: no rows; add rows or name another file")


def read_text(value: Any, column: str, where: str) -> str:
    """Return a text without the blanks around it."""
    text = required_text(value, column, where, blank=False)
    if len(text) > MOST_CHARACTERS:
        raise CseError(f"{where}: {len(text):,} characters in column {column!r}; split the text")
    return text.strip()
