"""A faiss index stored next to the shards: exact (every vector in memory) or hnsw (an approximate graph)."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError
from cse.scale.corpus.output import INDEX, INDEX_FACTS, VectorStore
from cse.scale.corpus.shard import shard_vectors

IndexKind = Literal["exact", "hnsw"]

_LINKS = 32  # per vector in the graph
_EFFORT = 200  # candidates per vector while building
_SEARCH_EFFORT = 128


class Index:
    """An open index; it returns row numbers of the corpus."""

    def __init__(self, index: Any, kind: IndexKind) -> None:
        self.index, self.kind = index, kind

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return cosines and row numbers (q, k), best first; -1 if the graph found fewer."""
        if self.kind == "hnsw":
            self.index.hnsw.efSearch = max(_SEARCH_EFFORT, 2 * k)
        cosines, rows = self.index.search(np.ascontiguousarray(queries), k)
        return cosines, rows


def build_index(vectors: VectorStore, kind: IndexKind) -> int:
    """Build an index shard by shard, replacing any other, and return its size in bytes.

    It needs four bytes of memory per number of each vector; ``hnsw`` needs 256 more per vector.

    Raises:
        CseError: faiss is not installed, or a shard cannot be read.
    """
    faiss = _faiss()
    if kind == "exact":
        index = faiss.IndexFlatIP(vectors.dimension)
    else:
        index = faiss.IndexHNSWFlat(vectors.dimension, _LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _EFFORT
    for _, block in shard_vectors(vectors):
        index.add(np.ascontiguousarray(block))
    folder = vectors.folder
    with folder.writing(INDEX) as draft:
        with draft.open("wb") as stream:  # faiss alone reports no failed write
            faiss.write_index(index, faiss.PyCallbackIOWriter(stream.write))
        size = draft.stat().st_size
        if INDEX_FACTS in folder.names():
            folder.remove(INDEX_FACTS)  # it belongs to the old index
    facts = {"kind": kind, "rows": index.ntotal, "manifest": vectors.digest, "bytes": size, "faiss": faiss.__version__}
    folder.write(INDEX_FACTS, (json.dumps(facts, indent=2) + "\n").encode())
    return size


def open_index(vectors: VectorStore) -> Index | None:
    """Open the index of a folder; None if there is none.

    Raises:
        CseError: an index of other vectors, a damaged one, or faiss is not installed.
    """
    folder = vectors.folder
    if not {INDEX, INDEX_FACTS} <= folder.names():
        return None
    try:
        facts = json.loads(folder.read(INDEX_FACTS))
        kind, manifest = facts["kind"], facts["manifest"]
    except (ValueError, KeyError, TypeError):
        raise CseError(f"{folder / INDEX_FACTS}: damaged; build the index again (cse index)") from None
    if manifest != vectors.digest:
        raise CseError(f"{folder / INDEX}: made from other vectors; build it again (cse index), or search with --scan")
    faiss = _faiss()
    try:
        if folder.local:
            return Index(faiss.read_index(str(Path(folder.path, INDEX)), faiss.IO_FLAG_MMAP), kind)
        with tempfile.TemporaryDirectory() as here:
            copy = Path(here, INDEX)
            folder.fs.get_file(f"{folder.path}/{INDEX}", str(copy))
            return Index(faiss.read_index(str(copy)), kind)
    except RuntimeError:  # faiss raises it for a truncated file
        raise CseError(f"{folder / INDEX}: damaged; build the index again (cse index)") from None


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise CseError("an index needs faiss: pip install 'cse[search]'; without one, search with --scan") from None
    return faiss
