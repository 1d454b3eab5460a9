"""Write and read a shard: a parquet file of ids, vectors and, if stored, texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError
from cse.runtime.encode import unit_rows
from cse.scale.corpus.columns import IdType
from cse.scale.corpus.output import VectorStore
from cse.scale.corpus.pieces import PieceRows
from cse.scale.corpus.plan import Piece

EMBEDDING = "embedding"


def shard_bytes(rows: PieceRows, vectors: NDArray[np.float32], id_type: IdType, *, keep_text: bool) -> memoryview:
    """Return a parquet file: ``id``, ``text`` if it is stored, ``embedding`` (n, d) as fixed-size lists.

    Vectors are not compressed: zstd saves a tenth and slows down every reader.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"id": pa.array(rows.ids, pa.int64() if id_type == "int64" else pa.string())}
    if keep_text:
        columns["text"] = pa.array(rows.texts, pa.string())
    flat = pa.array(vectors.reshape(-1), pa.float32())
    columns[EMBEDDING] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns),
        sink,
        use_dictionary=False,
        write_statistics=["id"],
        compression={_leaf(name): "none" if name == EMBEDDING else "zstd" for name in columns},
    )
    return memoryview(sink.getvalue())


def read_shard(store: VectorStore, piece: Piece, columns: Sequence[str]) -> Any:
    """Return columns of a piece's shard as an Arrow table.

    Raises:
        CseError: a missing or damaged shard.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with store.folder.open(piece.shard) as file:
            # an Arrow thread that still holds the Python file when the process exits would abort it
            return pq.ParquetFile(file).read(columns=list(columns), use_threads=False)
    except FileNotFoundError:
        raise CseError(f"{store.folder / piece.shard}: missing; run `cse embed` again to make it") from None
    except pa.ArrowInvalid:
        raise CseError(f"{store.folder / piece.shard}: damaged; remove it and run `cse embed` again") from None


def shard_vectors(store: VectorStore) -> Iterator[tuple[Piece, NDArray[np.float32]]]:
    """Yield each piece with its vectors (n, d), scaled to unit length, one shard at a time.

    Raises:
        CseError: what ``read_shard`` raises, or a shard with another number of rows than its piece.
    """
    for piece in store.plan.pieces():
        column = read_shard(store, piece, [EMBEDDING]).column(EMBEDDING).combine_chunks()
        block = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, store.dimension)
        if len(block) != piece.rows:
            raise CseError(f"{store.folder / piece.shard}: {len(block)} rows, not {piece.rows}; embed again")
        yield piece, block if store.normalize else unit_rows(block)


def _leaf(column: str) -> str:
    """Return the path under which parquet stores a column's values."""
    return f"{column}.list.element" if column == EMBEDDING else column
