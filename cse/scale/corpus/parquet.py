"""Parquet files of a corpus: cut by their metadata, read slice by slice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from cse.errors import CseError
from cse.scale.corpus.columns import Columns, IdType, check_names
from cse.scale.corpus.lines import Cut

_BATCH = 8192


def cut_rows(file: BinaryIO, shown: str, rows: int, columns: Columns) -> tuple[IdType, list[Cut]]:
    """Cut a parquet file after every ``rows`` rows.

    Returns:
        The type of the ids, and the stretches; their bounds are row numbers in the file, from 0.

    Raises:
        CseError: no parquet, a column that is missing or of a wrong type, and nulls where the file counts them.
    """
    opened = _open(file, shown)
    schema = opened.schema_arrow
    check_names(columns, schema.names, shown)
    id_type = _check_types(schema, columns, shown)
    _refuse_counted_nulls(opened.metadata, columns, shown)
    total = opened.metadata.num_rows
    return id_type, [
        Cut(start, min(start + rows, total), min(rows, total - start), start + 1) for start in range(0, total, rows)
    ]


def read_slice(file: BinaryIO, shown: str, start: int, end: int, columns: Columns) -> Iterator[tuple[list[Any], ...]]:
    """Yield values of the text and, if it is named, of the id column: rows ``start`` to ``end`` of a file, in batches.

    Only the row groups that hold them are read.

    Raises:
        CseError: a file that is cut off or damaged.
    """
    import pyarrow as pa

    opened = _open(file, shown)
    groups, before = [], 0
    position = None  # row number in the file of the first row that is read
    for group in range(opened.metadata.num_row_groups):
        count = opened.metadata.row_group(group).num_rows
        if before < end and before + count > start:
            groups.append(group)
            position = before if position is None else position
        before += count
    row = position or 0
    try:
        # one thread: the other cores belong to other workers
        batches = opened.iter_batches(batch_size=_BATCH, row_groups=groups, columns=columns.names, use_threads=False)
        for batch in batches:
            first, last = max(start - row, 0), min(end - row, len(batch))
            if first < last:
                part = batch.slice(first, last - first)
                yield tuple(part.column(name).to_pylist() for name in columns.names)
            row += len(batch)
            if row >= end:
                return
    except (pa.ArrowInvalid, OSError) as error:
        raise CseError(f"{shown}:{row + 1}: cannot be read ({str(error).splitlines()[0]})") from None


def _open(file: BinaryIO, shown: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except pa.ArrowInvalid:
        raise CseError(f"{shown}: not a parquet file, or cut off; write it again") from None


def _check_types(schema: Any, columns: Columns, shown: str) -> IdType:
    import pyarrow.types as types

    def is_text(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)

    kind = schema.field(columns.text).type
    if not is_text(kind):
        raise CseError(f"{shown}: column {columns.text!r} holds {kind}, no text; name another with --text-column")
    if columns.id is None:
        return "int64"
    kind = schema.field(columns.id).type
    if is_text(kind):
        return "string"
    if types.is_integer(kind):
        return "int64"
    raise CseError(f"{shown}: id column {columns.id!r} holds {kind}; ids are whole numbers or text")


def _refuse_counted_nulls(metadata: Any, columns: Columns, shown: str) -> None:
    """Refuse nulls that the statistics of the row groups count, before anything is read."""
    first = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            counted = column.statistics is not None and column.statistics.has_null_count
            if column.path_in_schema in columns.names and counted and column.statistics.null_count:
                raise CseError(
                    f"{shown}: {column.statistics.null_count} nulls in column {column.path_in_schema!r}, in rows "
                    f"{first + 1} to {first + row_group.num_rows}; drop these rows or put text there"
                )
        first += row_group.num_rows
