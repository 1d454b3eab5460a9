"""From a piece to its shard: what each process does, with Ray and without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cse.runtime.encode import CUT_WARNING
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.scale.corpus.columns import IdType
from cse.scale.corpus.pieces import Rows, read_piece
from cse.scale.corpus.plan import Choices, Piece
from cse.scale.corpus.sources import Format, Source
from cse.scale.corpus.storage import Folder

EMBEDDING = "embedding"


@dataclass(frozen=True)
class Job:
    """What a process needs to know beside its pieces.

    Attributes:
        bundle: folder of the model.
        out: folder of the shards, as a path from the root or a URL.
        format: of the corpus.
        choices: options that change a shard.
        id_type: of the ids.
    """

    bundle: str
    out: str
    format: Format
    choices: Choices
    id_type: IdType


class Made(NamedTuple):
    """What became of a piece: its rows, and how many distinct ones were longer than the model reads."""

    rows: int
    cut: int


class Worker:
    """An encoder that makes shards on one core, or on a GPU.

    Raises:
        CseError: a bundle that does not load, or a GPU that does not attach.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        # one thread whoever runs it: the bytes of a shard must not depend on that
        self.encoder = OnnxEncoder(job.bundle, provider=job.choices.provider, threads=1)
        self.folder = Folder(job.out)

    def make_shard(self, piece: Piece, source: Source) -> Made:
        """Read, encode and write a piece.

        Raises:
            CseError: a corpus, a model or a place to write that does not do.
            OSError: the same of this machine's disk.
        """
        job, choices = self.job, self.job.choices
        rows = read_piece(piece, source, job.format, choices.columns, job.id_type)
        with _counting_cuts() as cuts:
            vectors = self.encoder.encode(rows.texts, batch_size=choices.batch_size, normalize=choices.normalize)
        self.folder.write(piece.shard, shard_bytes(rows, vectors, job.id_type, keep_text=choices.keep_text))
        return Made(piece.rows, sum(cuts))


@contextmanager
def _counting_cuts() -> Iterator[list[int]]:
    """Collect the numbers in the encoder's warnings of cut sentences, which would come once a shard."""
    cuts: list[int] = []

    def is_other(record: logging.LogRecord) -> bool:
        if record.msg == CUT_WARNING and isinstance(record.args, tuple):
            cuts.append(int(str(record.args[0])))
            return False
        return True

    log = logging.getLogger("cse")
    log.addFilter(is_other)
    try:
        yield cuts
    finally:
        log.removeFilter(is_other)


def shard_bytes(rows: Rows, vectors: NDArray[np.float32], id_type: IdType, *, keep_text: bool) -> memoryview:
    """Return a parquet file: ``id``, ``text`` if it is kept, ``embedding`` (n, d) as lists of fixed size.

    Vectors are not compressed: zstd takes a tenth off them and costs every reader time.
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


def _leaf(column: str) -> str:
    """Return the path under which parquet stores a column's values."""
    return f"{column}.list.element" if column == EMBEDDING else column
