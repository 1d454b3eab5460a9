"""Parquet files, streamed batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from cse.errors import CseError

_BATCH_ROWS = 8192


def open_parquet(file: Path | BinaryIO, shown: str) -> Any:
    """Open a parquet file; raise ``CseError`` if it is not a parquet file or is truncated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except pa.ArrowInvalid:
        raise CseError(f"{shown}: not a parquet file, or cut off; write it again") from None


def parquet_batches(
    file: Any, shown: str, names: Sequence[str], groups: Sequence[int] | None = None, first: int = 1
) -> Iterator[tuple[int, Any]]:
    """Yield the record batches of an open parquet file, each with the number of its first row.

    Args:
        file: from ``open_parquet``.
        shown: name of the file in errors.
        names: columns to read.
        groups: row groups to read; None: all.
        first: number of the first row in these groups.

    Raises:
        CseError: the file is damaged.
    """
    import pyarrow as pa

    try:
        # one thread: other cores may belong to other workers
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(names), use_threads=False):
            yield first, batch
            first += len(batch)
    except (pa.ArrowInvalid, OSError) as error:
        raise CseError(f"{shown}:{first}: cannot be read ({str(error).splitlines()[0]})") from None


def batch_rows(batch: Any, names: Sequence[str], first: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the row number and values of each row of a record batch."""
    return enumerate(zip(*(batch.column(name).to_pylist() for name in names), strict=True), start=first)
