"""What a table of the report is made of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """A table cell.

    Attributes:
        number: sort key; None: last.
        note: footnote mark, or empty.
        deviation: standard deviation of a mean, and the number of runs if not all; or empty.
    """

    text: str
    number: float | None = None
    note: str = ""
    deviation: str = ""


@dataclass(frozen=True)
class Line:
    """A row of a table; ``own`` if this project measured it."""

    cells: tuple[Cell, ...]
    own: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        words: number of leading text columns; the rest are numbers.
        notes: footnotes in order.
    """

    key: str
    title: str
    caption: str
    head: tuple[str, ...]
    words: int
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = field(default=())
