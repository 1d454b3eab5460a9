"""Which columns of a corpus are read, and what their values may be."""

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
    for name, option in zip(columns.names, ("--text-column", "--id-column"), strict=False):
        check_column(name, there, shown, option)


class RowCheck:
    """Refuses rows without a usable text or id, through all files of a corpus.

    Attributes:
        id_type: of the ids so far.
    """

    def __init__(self, columns: Columns, id_type: IdType | None = None) -> None:
        self.columns, self.id_type = columns, id_type

    def checked(self, rows: Iterable[tuple[int, Any]], shown: str) -> Iterator[tuple[str, list[Any]]]:
        """Yield the text of each numbered row, and a list of its id or of nothing.

        Raises:
            CseError: a text that is null or none, an id of another type than those before it, with file and line.
        """
        for number, (text, *ids) in rows:
            where = f"{shown}:{number}"
            text = required_text(text, self.columns.text, where)
            for value in ids:
                self.id_type = check_id(value, self.id_type, str(self.columns.id), where)
            yield text, ids


def check_id(value: Any, known: IdType | None, name: str, where: str) -> IdType:
    """Return the type of an id, which is that of the ids before it.

    Raises:
        CseError: an id that is neither a whole number nor text, or not what those before it are.
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
