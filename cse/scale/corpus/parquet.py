"""Parquet files of a corpus: split by their metadata, read span by span."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, BinaryIO

from cse.data.checks import check_columns, is_text_type
from cse.data.read import batch_rows, open_parquet, parquet_batches
from cse.errors import CseError
from cse.scale.corpus.columns import Columns, IdType, RowCheck, check_names
from cse.scale.corpus.lines import Span, split_rows


def split_parquet(
    file: BinaryIO, shown: str, rows: int, columns: Columns, check: RowCheck
) -> tuple[IdType, list[Span]]:
    """Split a parquet file after every ``rows`` rows.

    Args:
        check: of domains, the only column whose values are read here, and of the types of kept columns.

    Returns:
        The type of the ids, and the spans, whose bounds are row numbers in the file, from 0.
    """
    opened = open_parquet(file, shown)
    schema = opened.schema_arrow
    check_names(columns, schema.names, shown)
    check_columns(
        shown, schema.names, columns.names, schema, texts=1 + (columns.domain is not None) + (columns.title is not None)
    )
    for name in columns.kept:
        check.note(name, _kept_type(schema.field(name).type, name, shown), shown)
    id_type = _id_type(schema, columns, shown)
    _refuse_counted_nulls(opened.metadata, columns, shown)
    if columns.domain is not None:
        for first, batch in parquet_batches(opened, shown, [columns.domain]):
            for number, (name,) in batch_rows(batch, [columns.domain], first):
                check.checked_domain(name, f"{shown}:{number}")
    total = opened.metadata.num_rows
    return id_type, list(split_rows(range(total), rows))


def parquet_rows(
    file: BinaryIO, shown: str, spans: Sequence[tuple[int, int]], columns: Columns
) -> Iterator[tuple[int, Any]]:
    """Yield the number (from 1) and the values (those of ``Columns.names``) of the rows of spans.

    Reads each row group that holds any of them once, in batches.

    Args:
        spans: first row (from 0) and the one past the last, in order, without overlaps.
    """
    opened = open_parquet(file, shown)
    before = 0  # rows before this group
    for group in range(opened.metadata.num_row_groups):
        end = before + opened.metadata.row_group(group).num_rows
        if any(_within(spans, before, end)):
            for number, batch in parquet_batches(opened, shown, columns.names, [group], before + 1):
                for first, last in _within(spans, number - 1, number - 1 + len(batch)):
                    yield from batch_rows(batch.slice(first + 1 - number, last - first), columns.names, first + 1)
        before = end


def _within(spans: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of the spans that lie between two rows."""
    for index in range(bisect_right(spans, start, key=itemgetter(1)), len(spans)):
        first, last = spans[index]
        if first >= end:
            return
        yield max(first, start), min(last, end)


def _kept_type(kind: Any, name: str, shown: str) -> str | None:
    import pyarrow.types as types

    if types.is_null(kind):
        return None
    tests = {"string": is_text_type, "bool": types.is_boolean, "int64": types.is_integer, "double": types.is_floating}
    for stored, matches in tests.items():
        if matches(kind):
            return stored
    raise CseError(f"{shown}: column {name!r} (--keep-column) holds {kind}; keep text, numbers, true and false")


def _id_type(schema: Any, columns: Columns, shown: str) -> IdType:
    import pyarrow.types as types

    if columns.id is None:
        return "int64"
    kind = schema.field(columns.id).type
    if is_text_type(kind):
        return "string"
    if types.is_integer(kind):
        return "int64"
    raise CseError(f"{shown}: id column {columns.id!r} holds {kind}; ids are whole numbers or text")


def _refuse_counted_nulls(metadata: Any, columns: Columns, shown: str) -> None:
    """Refuse nulls that the row group statistics count, before reading anything."""
    first = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            counted = column.statistics is not None and column.statistics.has_null_count
            if column.path_in_schema in columns.filled and counted and column.statistics.null_count:
                raise CseError(
                    f"{shown}: {column.statistics.null_count} nulls in column {column.path_in_schema!r}, in rows "
                    f"{first + 1} to {first + row_group.num_rows}; drop these rows or put text there"
                )
        first += row_group.num_rows
