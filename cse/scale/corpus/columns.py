"""Which columns of a corpus are read, and what their values may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cse.errors import CseError, nearest

IdType = Literal["int64", "string"]

_INT64 = 1 << 63
_SHOWN = 8


@dataclass(frozen=True)
class Columns:
    """Names of columns: of the text, and of the ids (None: rows are numbered)."""

    text: str = "text"
    id: str | None = None

    @property
    def names(self) -> list[str]:
        """Return both names, or the one there is."""
        return [self.text] if self.id is None else [self.text, self.id]


def check_names(columns: Columns, there: Sequence[str], shown: str) -> None:
    """Refuse names of columns that a file does not have.

    Raises:
        CseError: the first that is missing, with the nearest name there is.
    """
    for option, name in (("--text-column", columns.text), ("--id-column", columns.id)):
        if name is not None and name not in there:
            listed = ", ".join(there[:_SHOWN]) + (f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else "")
            raise CseError(f"{shown}: no column {name!r} ({option}){nearest(name, there)}; the columns are {listed}")


def check_text(value: Any, name: str, where: str) -> str:
    """Return a value that is a text.

    Raises:
        CseError: null, no text, or half of a surrogate pair, which is no character.
    """
    if not isinstance(value, str):
        found = "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
        raise CseError(f"{where}: column {name!r} should hold text, found {found}; mend or drop the row")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise CseError(f"{where}: half of a surrogate pair in column {name!r}; write the character in full")
    return value


def check_id(value: Any, known: IdType | None, name: str, where: str) -> IdType:
    """Return the type of an id, which is that of the ids before it.

    Raises:
        CseError: an id that is neither a whole number nor text, or not what those before it are.
    """
    found: IdType
    if isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64:
        found = "int64"
    elif isinstance(value, str):
        check_text(value, name, where)
        found = "string"
    else:
        what = "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
        raise CseError(f"{where}: id column {name!r} should hold whole numbers or text, found {what}")
    if known not in (None, found):
        raise CseError(f"{where}: id column {name!r} held {known} before, here {found}; give ids of one type")
    return found
