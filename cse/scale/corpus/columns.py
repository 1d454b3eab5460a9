"""The columns to read from a corpus and the values they may contain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cse.data.checks import check_column, check_text, required_text, titled
from cse.errors import CseError

IdType = Literal["int64", "string"]
Row = tuple[str, list[Any], list[str], list[Any]]  # text, id and domain if a column holds them, values of kept columns

_INT64 = 1 << 63


@dataclass(frozen=True)
class Columns:
    """Names of the text column, of the id column (None: rows are numbered), of the column that names each row's domain
    (None: one model for all rows), of the column of titles to put before the texts, and of those to store for filters;
    and the encoding of text.
    """

    text: str = "text"
    id: str | None = None
    domain: str | None = None
    title: str | None = None
    kept: tuple[str, ...] = ()
    encoding: str = "utf-8"

    @property
    def names(self) -> list[str]:
        """Return the names that are set: text, domain, title, id, kept; the first three hold text in any case."""
        return [name for name, _ in self.options]

    @property
    def options(self) -> list[tuple[str, str]]:
        """Return the names that are set, each with its option."""
        every = (
            (self.text, "--text-column"),
            (self.domain, "--domain-column"),
            (self.title, "--title-column"),
            (self.id, "--id-column"),
            *((name, "--keep-column") for name in self.kept),
        )
        return [(name, option) for name, option in every if name is not None]

    @property
    def filled(self) -> list[str]:
        """Return the names of the columns in which every row must have a value."""
        return [name for name in (self.text, self.domain, self.id) if name is not None]


def check_names(columns: Columns, there: Sequence[str], shown: str) -> None:
    """Raise ``CseError`` for the first column that a file does not have, with the nearest name."""
    for name, option in columns.options:
        check_column(name, there, shown, option)


class RowCheck:
    """Checks the texts, ids and domains of all files of a corpus.

    Args:
        id_type: type of the ids, if known.
        check_domain: raises ``CseError`` for the name of a domain that cannot be used; None: any name will do.

    Attributes:
        id_type: type of the ids so far; None before the first.
    """

    def __init__(
        self, columns: Columns, id_type: IdType | None = None, check_domain: Callable[[str], object] | None = None
    ) -> None:
        self.columns, self.id_type = columns, id_type
        self.kept: dict[str, str] = {}
        self._check_domain = check_domain
        self._known: set[str] = set()

    def checked(self, rows: Iterable[tuple[int, Any]], shown: str) -> Iterator[Row]:
        """Yield each numbered row; a title stands before its text."""
        columns = self.columns
        for number, (text, *values) in rows:
            where = f"{shown}:{number}"
            text = required_text(text, columns.text, where)
            domains = [] if columns.domain is None else [self.checked_domain(values.pop(0), where)]
            if columns.title is not None:
                text = titled(check_text(values.pop(0), where), text)
            ids = [] if columns.id is None else [values.pop(0)]
            for value in ids:
                self.id_type = check_id(value, self.id_type, str(columns.id), where)
            for name, value in zip(columns.kept, values, strict=True):
                self.note(name, _kind(value, name, where), where)
            yield text, ids, domains, values

    def note(self, name: str, found: str | None, where: str) -> None:
        """Note the type of a kept column's value, None for a missing one; whole numbers fit among others."""
        known = self.kept.get(name, found)
        if found is None or known == found:
            found = known
        elif {known, found} == {"int64", "double"}:
            found = "double"
        else:
            raise CseError(f"{where}: column {name!r} (--keep-column) held {known} before, here {found}; give one type")
        if found is not None:
            self.kept[name] = found

    def checked_domain(self, value: Any, where: str) -> str:
        """Return the name of a row's domain."""
        name = required_text(value, str(self.columns.domain), where, blank=False)
        if name not in self._known and self._check_domain is not None:
            try:
                self._check_domain(name)
            except CseError as error:
                raise CseError(f"{where}: {error}") from None
            self._known.add(name)
        return name


def check_id(value: Any, known: IdType | None, name: str, where: str) -> IdType:
    """Return the type of an id."""
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


def _kind(value: Any, name: str, where: str) -> str | None:
    """Return the type in which a kept value is stored; None for a missing one."""
    if isinstance(value, str):
        check_text(value, where)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or -_INT64 <= value < _INT64:
        for kind, stored in ((bool, "bool"), (int, "int64"), (float, "double"), (str, "string"), (type(None), None)):
            if isinstance(value, kind):
                return stored
    raise CseError(
        f"{where}: column {name!r} (--keep-column) should hold text, numbers, true or false, found {str(value)[:40]!r}"
    )
