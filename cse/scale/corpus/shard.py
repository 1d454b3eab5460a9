"""Write and read a shard: a parquet file of ids, vectors and, if stored, texts and other columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError
from cse.runtime.encode import unit_rows
from cse.scale.corpus.columns import IdType
from cse.scale.corpus.database import WORDS
from cse.scale.corpus.output import VectorStore
from cse.scale.corpus.pieces import PieceRows
from cse.scale.corpus.plan import Piece

EMBEDDING = "embedding"
LEFT_OUT = b"left_out"
STORED = ("id", "text", EMBEDDING, WORDS, "_distance", "_score", "_relevance_score", "_rowid")  # the last are LanceDB's


def shard_bytes(
    rows: PieceRows, vectors: NDArray[np.float32], id_type: IdType, kept: Mapping[str, str], *, keep_text: bool
) -> memoryview:
    """Return a parquet file: ``id``, ``text`` if it is stored, kept columns, ``embedding`` (n, d) as fixed-size lists.

    Vectors are not compressed: zstd saves a tenth and slows down every reader. Ids of rows that were left out are kept
    beside the columns: an update takes these rows from an index.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"id": pa.array(rows.ids, pa.int64() if id_type == "int64" else pa.string())}
    if keep_text:
        columns["text"] = pa.array(rows.texts, pa.string())
    for (name, kind), values in zip(kept.items(), rows.kept, strict=True):
        columns[name] = pa.array(values, pa.type_for_alias(kind))
    columns[EMBEDDING] = _lists(vectors)
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, metadata={LEFT_OUT: json.dumps(rows.left_out)} if rows.left_out else None),
        sink,
        use_dictionary=False,
        write_statistics=["id"],
        compression={_leaf(name): "none" if name == EMBEDDING else "zstd" for name in columns},
    )
    return memoryview(sink.getvalue())


def read_shard(store: VectorStore, piece: Piece, columns: Sequence[str] | None = None) -> Any:
    """Return a piece's shard, or some columns of it, as an Arrow table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with store.folder.open(piece.shard) as file:
            # an Arrow thread that still holds the Python file when the process exits would abort it
            return pq.ParquetFile(file).read(columns=columns and list(columns), use_threads=False)
    except FileNotFoundError:
        raise CseError(f"{store.folder / piece.shard}: missing; run `cse embed` again to make it") from None
    except pa.ArrowInvalid:
        raise CseError(f"{store.folder / piece.shard}: damaged; remove it and run `cse embed` again") from None


def shard_tables(store: VectorStore, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the Arrow table of each shard, or some columns of it, with vectors scaled to unit length."""
    for piece in store.plan.pieces():
        table = read_shard(store, piece, columns)
        if len(table) > piece.rows:
            raise CseError(f"{store.folder / piece.shard}: {len(table)} rows, not {piece.rows}; embed again")
        if not store.normalize and EMBEDDING in table.column_names:
            place, column = table.column_names.index(EMBEDDING), table[EMBEDDING].combine_chunks()
            block = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, store.dimension)
            table = table.set_column(place, EMBEDDING, _lists(unit_rows(block)))
        yield table


def left_out(store: VectorStore) -> list[Any]:
    """Return the ids of the rows whose texts said nothing."""
    metadata = (read_shard(store, piece, ["id"]).schema.metadata or {} for piece in store.plan.pieces())
    return [id_ for found in metadata for id_ in json.loads(found.get(LEFT_OUT, b"[]"))]


def _lists(vectors: NDArray[np.float32]) -> Any:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), vectors.shape[1])


def _leaf(column: str) -> str:
    """Return the path under which parquet stores a column's values."""
    return f"{column}.list.element" if column == EMBEDDING else column
