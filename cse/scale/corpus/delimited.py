"""csv and tsv files of a corpus: a record may reach over several lines, so the plan cuts behind whole records only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cse.data.tables import check_width, delimited_records, header_columns
from cse.errors import CseError
from cse.scale.corpus.columns import Columns, check_names
from cse.scale.corpus.lines import file_lines

_LONGEST_RECORD = 1 << 24  # characters


class RecordCheck:
    """A ``Check`` of ``cut_lines``: the last line of each record is the row, and records may reach over blocks.

    Args:
        columns: names of the columns to read.
        ending: ``.csv`` or ``.tsv``.
        shown: name of the file in errors.
        accept: called with the values by column and the place ``file:line`` of each record.
    """

    def __init__(
        self, columns: Columns, ending: str, shown: str, accept: Callable[[dict[str, Any], str], None]
    ) -> None:
        self.columns, self.ending, self.shown, self.accept = columns, ending, shown, accept
        self._header: list[str] | None = None
        self._open: list[str] = []  # lines of a record that the block before did not end ...
        self._number = 1  # ... and the number of the first

    def __call__(self, lines: list[str], first: int) -> NDArray[np.bool_]:
        """Tell which lines end a record; the header and blank lines are none."""
        before, lines = len(self._open), self._open + lines
        first -= before
        counts = np.zeros(len(lines), bool)
        self._open, taken = [], 0

        def feed() -> Iterator[str]:
            nonlocal taken
            for line in lines:
                taken += 1
                yield line

        records = delimited_records(feed(), self.ending, self.shown, first)
        while True:
            start = taken
            try:
                number, record = next(records)
            except StopIteration:
                return counts[before:]
            except CseError:
                # broken, or it goes on in the next block
                if taken < len(lines) or sum(map(len, lines[start:])) > _LONGEST_RECORD:
                    raise
                self._open, self._number = lines[start:], first + start
                return counts[before:]
            counts[taken - 1] = bool(record) and self._is_row(record, f"{self.shown}:{number}")

    def finish(self) -> None:
        """Refuse a record that the end of the file cuts off."""
        for _ in delimited_records(self._open, self.ending, self.shown, self._number):
            pass

    def _is_row(self, record: Any, where: str) -> bool:
        if self._header is None:
            self._header = _checked_header(record, self.columns, where)
            return False
        check_width(record, self._header, self.ending, where)
        self.accept({name: record[self._header.index(name)] for name in self.columns.names}, where)
        return True


def read_records(
    lines: list[str], first: int, columns: Columns, ending: str, shown: str, whole: BinaryIO
) -> Iterator[tuple[str, ...]]:
    """Yield the text and, if it is named, the id of each record of a stretch of a file.

    Args:
        lines: of the stretch.
        first: number of its first line; the stretch with line 1 begins with the header.
        columns: names of the columns to read.
        ending: ``.csv`` or ``.tsv``.
        shown: name of the file in errors.
        whole: the file, read up to its header where the stretch has none.

    Raises:
        CseError: a broken record, or one of another width than the header.
    """
    records = ((number, record) for number, record in delimited_records(lines, ending, shown, first) if record)
    if first == 1:
        header = next((record for _, record in records), None)
    else:
        every = delimited_records(file_lines(whole, shown), ending, shown)
        header = next((record for _, record in every if record), None)
    names = _checked_header(header or [], columns, shown)
    places = [names.index(name) for name in columns.names]
    for number, record in records:
        check_width(record, names, ending, f"{shown}:{number}")
        yield tuple(record[place] for place in places)


def _checked_header(record: Any, columns: Columns, where: str) -> list[str]:
    names = header_columns(record)
    check_names(columns, names, where)
    for name in columns.names:
        if names.count(name) > 1:
            raise CseError(f"{where}: {names.count(name)} columns {name!r}; give each a name of its own")
    return names
