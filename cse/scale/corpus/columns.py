"""The columns to read from a corpus and the values they may contain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cse.data.checks import check_column, check_text, required_text
from cse.errors import CseError

IdType = Literal["int64", "string"]

_INT64 = 1 << 63


@dataclass(frozen=True)
class Columns:
    """Names of the text column, of the id column (None: rows are numbered), and of the column that names each row's
    domain (None: one model for all rows).
    """

    text: str = "text"
    id: str | None = None
    domain: str | None = None

    @property
    def names(self) -> list[str]:
        """Return the names that are set: text, domain, id; those that hold text in any case come first."""
        return [name for name, _ in self.options]

    @property
    def options(self) -> list[tuple[str, str]]:
        """Return the names that are set, each with its option."""
        every = ((self.text, "--text-column"), (self.domain, "--domain-column"), (self.id, "--id-column"))
        return [(name, option) for name, option in every if name is not None]


def check_names(columns: Columns, there: Sequence[str], shown: str) -> None:
    """Raise ``CseError`` for the first column that a file does not have, with the nearest name."""
    for name, option in columns.options:
        check_column(name, there, shown, option)


class RowCheck:
    """Checks the texts, ids and domains of all files of a corpus.

    Args:
        columns: the columns that are read.
        id_type: type of the ids, if known.
        check_domain: raises ``CseError`` for the name of a domain that cannot be used; None: any name will do.

    Attributes:
        id_type: type of the ids so far; None before the first.
    """

    def __init__(
        self, columns: Columns, id_type: IdType | None = None, check_domain: Callable[[str], object] | None = None
    ) -> None:
        self.columns, self.id_type = columns, id_type
        self._check_domain = check_domain
        self._known: set[str] = set()

    def checked(self, rows: Iterable[tuple[int, Any]], shown: str) -> Iterator[tuple[str, list[Any], list[str]]]:
        """Yield the text of each numbered row, a list with its id and one with its domain; without that column, the
        list is empty.

        Raises:
            CseError: a missing text, a value that is not text, a bad id or a bad domain, with file and line.
        """
        for number, (text, *ids) in rows:
            where = f"{shown}:{number}"
            text = required_text(text, self.columns.text, where)
            domains = [] if self.columns.domain is None else [self.checked_domain(ids.pop(0), where)]
            for value in ids:
                self.id_type = check_id(value, self.id_type, str(self.columns.id), where)
            yield text, ids, domains

    def checked_domain(self, value: Any, where: str) -> str:
        """Return the name of a row's domain.

        Raises:
            CseError: no name, or one of a domain that cannot be used, with the nearest; ``where`` gives file and line.
        """
        name = required_text(value, str(self.columns.domain), where, blank=False)
        if name not in self._known and self._check_domain is not None:
            try:
                self._check_domain(name)
            except CseError as error:
                raise CseError(f"{where}: {error}") from None
            self._known.add(name)
        return name


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
