"""Prepared data on disk: plain Arrow files, mapped into memory.

The bytes depend only on the rows: there are no time stamps, fingerprints or paths, and batches have a fixed number of
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, overload

import pyarrow as pa

from cse.artifact import read_object
from cse.errors import CseError

TRAIN_FILE, REPORT_FILE = "train.arrow", "report.json"
DOCUMENTS_FILE = "documents.arrow"  # all documents, where some rows of them were drawn
AGAIN = "run `cse prepare`"  # what helps against a damaged file
_MORE = "train-"  # before the name of a further source
VIEW_COLUMNS = {
    "sentences": ("sent0",),
    "pairs": ("sent0", "sent1"),
    "triplets": ("sent0", "sent1", "hard_neg"),
    "labelled": ("sent0", "sent1", "label"),
}
STAND_INS = "stand_ins"  # what rows are made from: texts of documents in place of queries
GROUP = "group"  # last column of rows that have one: the label or document that a row comes from
BATCH_ROWS = 4096


def source_file(source: str) -> str:
    """Return the name of the file with the rows of a further source."""
    return f"{_MORE}{source}.arrow"


def write_rows(path: Path, view: str, rows: Iterable[tuple[str, ...]], *, grouped: bool = False) -> int:
    """Write a stream of training rows, with their group last if ``grouped``, and return their number."""
    names = (*VIEW_COLUMNS[view], GROUP) if grouped else VIEW_COLUMNS[view]
    schema = pa.schema([(name, pa.string()) for name in names])
    return write_table(path, schema, rows)


def open_rows(path: Path) -> pa.Table:
    """Map training rows into memory."""
    rows = map_table(path)
    view_of(rows)
    return rows


class MappedTexts(Sequence[str]):
    """Texts of a table that is mapped into memory; a part of them is read at a time."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return list(self._column.slice(start, max(stop - start, 0)).to_pylist()[::step])
        return str(self._column[int(place)].as_py())

    def __iter__(self) -> Iterator[str]:
        for chunk in self._column.chunks:
            yield from chunk.to_pylist()


def texts_in(rows: pa.Table, name: str) -> Iterator[str]:
    """Yield the texts of one column."""
    return iter(MappedTexts(rows[name]))


def view_of(rows: pa.Table) -> str:
    """Return the view that matches the columns of rows, a group aside; raise ``CseError`` if there is none."""
    names = tuple(rows.column_names)
    for view, columns in VIEW_COLUMNS.items():
        if names in (columns, (*columns, GROUP)):
            return view
    raise CseError(f"prepared rows have the columns {', '.join(names)}; run `cse prepare`")


def write_table(path: Path, schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> int:
    """Write a stream of rows, in the column order of the schema, and return their number."""
    count, remaining = 0, iter(rows)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        while batch := list(islice(remaining, BATCH_ROWS)):
            columns = zip(zip(*batch, strict=True), schema, strict=True)
            writer.write_batch(
                pa.record_batch([pa.array(values, kind.type) for values, kind in columns], schema=schema)
            )
            count += len(batch)
    return count


def map_table(path: Path) -> pa.Table:
    """Map a table into memory."""
    if not path.is_file():
        raise CseError(f"{path}: no such file; {AGAIN}")
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except (pa.ArrowInvalid, OSError):
        raise CseError(f"{path}: cut off or damaged; {AGAIN}") from None


class PreparedData:
    """A folder written by ``prepare``; opens each part on first use.

    Args:
        rows: other training rows than those in the folder.
    """

    def __init__(self, folder: Path | str, rows: Path | None = None) -> None:
        self.folder = Path(folder)
        self.rows_file = rows or self.folder / TRAIN_FILE
        if not self.folder.is_dir():
            raise CseError(f"{self.folder}: no prepared data; {AGAIN}")

    def of(self, source: str) -> PreparedData:
        """Return the same data with the rows of a further source, by its name, for training."""
        return PreparedData(self.folder, rows=self.folder / source_file(source))

    @property
    def sources(self) -> list[str]:
        """Names of the further sources, sorted."""
        return sorted(path.stem.removeprefix(_MORE) for path in self.folder.glob(source_file("*")))

    @cached_property
    def train(self) -> pa.Table:
        """Training rows, mapped into memory, with the columns of ``VIEW_COLUMNS`` and perhaps ``GROUP``."""
        return open_rows(self.rows_file)

    @cached_property
    def view(self) -> str:
        """``sentences``, ``pairs``, ``triplets`` or ``labelled``."""
        return view_of(self.train)

    @property
    def made_from(self) -> str | None:
        """What the rows were made from: ``documents``, ``stand_ins`` of them, ``categories``, or None: nothing else."""
        name = self.rows_file.stem
        found = self.report["more"][name.removeprefix(_MORE)] if name.startswith(_MORE) else self.report
        made: str | None = found.get("made_from")
        return made

    @cached_property
    def documents(self) -> MappedTexts | None:
        """All documents, mapped into memory; None where the rows hold them."""
        path = self.folder / DOCUMENTS_FILE
        return MappedTexts(map_table(path)["text"]) if path.is_file() else None

    def sentences(self) -> Iterator[str]:
        """Yield the sentences of the training rows, column after column."""
        for name in VIEW_COLUMNS[self.view]:
            if name != "label":
                yield from texts_in(self.train, name)

    def check_labelled(self) -> None:
        """Raise a CseError if the training rows were not made from labelled texts."""
        if self.report.get("made_from") != "categories":
            raise CseError(
                f"{self.folder}: its texts have no labels; prepare texts with labels (data.view: categories)"
            )

    def labels(self) -> dict[str, list[str]]:
        """Return each training text with its labels, in the order of the rows; most have one."""
        self.check_labelled()
        found: dict[str, dict[str, None]] = {}
        for name in VIEW_COLUMNS[self.view]:
            for text, label in zip(texts_in(self.train, name), texts_in(self.train, GROUP), strict=True):
                found.setdefault(text, {})[label] = None
        return {text: list(labels) for text, labels in found.items()}

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report of ``prepare``."""
        path = self.folder / REPORT_FILE
        if not path.is_file():
            raise CseError(f"{path}: no such file; {AGAIN}")
        return read_object(path, AGAIN)


def rows_in_words(data: Mapping[str, Any]) -> str:
    """Describe training rows: source, number, view, and how many share a sentence with the evaluation data.

    Args:
        data: ``source``, ``rows``, ``view`` and, in newer checkpoints, ``evaluation_overlap``; ``more`` has the same of
            further sources by name.
    """
    overlap = data.get("evaluation_overlap", 0)
    seen = f" ({overlap:,} with a sentence of the evaluation data)" if overlap else ""
    more = "".join(f" + {rows_in_words(other)}" for other in data.get("more", {}).values())
    return f"{data['source']}, {data['rows']:,} {data['view']}{seen}{more}"
