"""The columns to read from a corpus and the values they may contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cse.data.checks import check_column, check_text, required_text
from cse.errors import CseError

IdType = Literal["int64", "string"]

_INT64 = 1 << 63


@dataclass(frozen=True)
class Columns:
    """Names of the text column and of the id column (None: rows are numbered)."""

    text: str = "text"
    id: str | None = None

    @property
    def names(self) -> list[str]:
        """Return the names that are set."""
        return [self.text] if self.id is None else [self.text, self.id]


def check_names(columns: Columns, there: Sequence[str], shown: str) -> None:
    """Raise ``CseError`` for the first column that a file does not have, with the nearest name."""
    for name, option in zip(columns.names, ("--text-column", "--id-column"), strict=False):
        check_column(name, there, shown, option)


class RowCheck:
    """Checks the texts and ids of all files of a corpus.

    Attributes:
        id_type: type of the ids so far; None before the first.
    """

    def __init__(self, columns: Columns, id_type: IdType | None = None) -> None:
        self.columns, self.id_type = columns, id_type

    def checked(self, rows: Iterable[tuple[int, Any]], shown: str) -> Iterator[tuple[str, list[Any]]]:
        """Yield the text of each numbered row and a list with its id, empty if there is no id column.

        Raises:
            CseError: a missing text, a value that is not text, or a bad id, with file and line.
        """
        for number, (text, *ids) in rows:
            where = f"{shown}:{number}"
            text = required_text(text, self.columns.text, where)
            for value in ids:
                self.id_type = check_id(value, self.id_type, str(self.columns.id), where)
            yield text, ids


def check_id(value: Any, known: IdType | None, name: str, where: str) -> IdType:
    """Return the type of an id.

    Raises:
        CseError: the id is neither a whole number nor text, or differs in type from earlier ids.
    """
    found: IdType
    if isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64:
        found = "int64"
    elif isinstance(value, str):
        check_text(value, where)
        found = "string"
    else:
        what = "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
        raise CseError(f"{where}: id column {name!r} should hold whole numbers or text, found {what}")
    if known not in (None, found):
        raise CseError(f"{where}: id column {name!r} held {known} before, here {found}; give ids of one type")
    return found
