"""The search index: a LanceDB table of ids, vectors, texts and kept columns beside the shards, on disk or in a bucket.

Every build and update makes new versions of the table; the tag ``ready`` names the last one that is whole. A search
reads that version to its end, whatever is written meanwhile, and a killed build leaves the one before.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cse.data.checks import listed
from cse.errors import CseError, nearest, one_line
from cse.evaluation.fusion import DEPTH, VECTORS_WEIGHT, lend
from cse.scale.corpus.database import FACTS, TABLE, TABLE_FOLDER, connect
from cse.scale.corpus.shard import EMBEDDING
from cse.scale.storage import Folder

Mode = Literal["hybrid", "vectors", "words"]
MODES: tuple[Mode, ...] = get_args(Mode)

_PROBES = 128  # partitions read, about half of a million rows: one bit per number is quick to read
_CANDIDATES, _PER_ROW = 200, 3  # at least: rows whose exact cosine is computed, in all and for each row wanted
READY = "ready"
_SCORE = "_relevance_score"  # column of what a hybrid search ranks by


@dataclass(frozen=True)
class Hit:
    """A row found.

    Attributes:
        id: its id.
        score: what ranks it: the cosine, BM25 of its words, or of a hybrid search half of each, scaled to 0 to 1
            among the rows that either found, and lent among those that are alike (``cse.evaluation.fusion``).
        cosine: with the query; None where words alone found it.
        bm25: None where no word of it is in the query, or it is not among the best.
        values: the text, if it is stored, and the kept columns, by name.
    """

    id: int | str
    score: float
    cosine: float | None
    bm25: float | None
    values: dict[str, Any]


@dataclass(frozen=True)
class SearchTable:
    """An open index, fixed at the version that was ready then.

    Attributes:
        table: the LanceDB table.
        url: folder of the vectors.
        bundle: path of the bundle or bank when the vectors were made.
        model: identity of the model, see ``model_facts``.
        role: role in which the rows were embedded, if any.
        id_column: column of the corpus that the ids are from; None: row numbers.
        queries: identity of the query side when the vectors were made, empty if there was none; None: unknown.
    """

    table: Any
    url: str
    bundle: str
    model: dict[str, Any]
    role: str | None
    id_column: str | None
    queries: str | None = None

    @property
    def dimension(self) -> int:
        """Width of a vector."""
        return int(self.table.schema.field(EMBEDDING).type.list_size)

    @property
    def columns(self) -> list[str]:
        """Names of the columns besides the vector."""
        return [name for name in self.table.schema.names if name != EMBEDDING]

    @property
    def has_text(self) -> bool:
        """Whether it has words to search."""
        return "text" in self.columns

    @property
    def approximate(self) -> bool:
        """Whether it compares the nearest partitions alone."""
        return any(index.columns == [EMBEDDING] for index in self.table.list_indices())

    def __len__(self) -> int:
        return int(self.table.count_rows())

    def mode(self, asked: Mode | None) -> Mode:
        """Return how to search: as asked, or hybrid where there is text.

        Raises:
            CseError: words are to be searched, and there is no text.
        """
        if asked in ("hybrid", "words") and not self.has_text:
            raise CseError(
                f"{self.url}: no text in the index, so --mode {asked} finds no words; embed with --keep-text"
            )
        return asked or ("hybrid" if self.has_text else "vectors")

    def search(
        self,
        queries: Sequence[str],
        vectors: NDArray[np.float32] | None,
        k: int,
        mode: Mode,
        *,
        where: str | None = None,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """Return at most ``k`` rows for each query, best first; of rows with equal cosines the earlier.

        Args:
            queries: texts.
            vectors: their vectors (q, d) of unit length; None for mode ``words``.
            k: fewer are returned if there are fewer rows, or if the words of a query are in fewer.
            mode: see ``mode``.
            where: SQL condition on columns that rows must meet.
            exact: compare every vector even if the index is approximate.

        Raises:
            CseError: an empty query, vectors of another width, a bad condition, or a table that was removed meanwhile.
        """
        for number, query in enumerate(queries, start=1):
            if not query.strip():
                raise CseError(f"search: query {number} is empty; write at least a word")
        if vectors is not None and vectors.shape != (len(queries), self.dimension):
            raise CseError(
                f"search: {len(queries)} queries, vectors {vectors.shape}; {self.url} has {self.dimension} dimensions"
            )
        with self._errors(where):
            return [
                self._one(query, None if vectors is None else vectors[row], k, mode, where, exact)
                for row, query in enumerate(queries)
            ]

    def _one(
        self, query: str, vector: NDArray[np.float32] | None, k: int, mode: Mode, where: str | None, exact: bool
    ) -> list[Hit]:
        from lancedb.query import MatchQuery
        from lancedb.rerankers import LinearCombinationReranker

        depth = max(k, DEPTH) if mode == "hybrid" else k
        words = MatchQuery(query, "text")  # a plain string is a language: quotes ask for phrases
        if mode == "words":
            builder = self.table.search(words, query_type="fts")
        elif mode == "vectors":
            builder = self.table.search(vector, EMBEDDING, "vector")
        else:
            builder = self.table.search(query_type="hybrid", vector_column_name=EMBEDDING).vector(vector).text(words)
            builder = builder.rerank(LinearCombinationReranker(VECTORS_WEIGHT, return_score="all"))
        if mode != "words":
            # of unit vectors: a zero vector has no cosine distance and would be left out
            builder = builder.distance_type("dot").nprobes(_PROBES)
            builder = builder.refine_factor(max(_PER_ROW, -(-_CANDIDATES // depth)))
            builder = builder.bypass_vector_index() if exact else builder
        builder = builder if where is None else builder.where(where, prefilter=True)
        hybrid = mode == "hybrid"
        found = builder.select([*self.columns, EMBEDDING] if hybrid else self.columns).limit(depth).to_arrow()
        if hybrid:
            found = _lent(found)
        return [self._hit(row, mode) for row in found.slice(0, k).to_pylist()]

    def _hit(self, row: dict[str, Any], mode: Mode) -> Hit:
        # what one side alone found has no score of the other, and is not a number where that side found nothing
        distance, bm25 = (None if math.isnan(row.get(name) or 0) else row.get(name) for name in ("_distance", "_score"))
        cosine = None if distance is None else 1 - distance
        score = row[{"hybrid": _SCORE, "words": "_score", "vectors": "_distance"}[mode]]
        score = 1 - score if mode == "vectors" else score
        return Hit(row["id"], score, cosine, bm25, {name: row[name] for name in self.columns if name != "id"})

    @contextmanager
    def _errors(self, where: str | None) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError, OSError) as error:
            said = str(error)
            if unknown := re.search(r"No field named (\"?)(.+?)\1\. Valid", said):
                name = unknown[2]
                near = nearest(name, self.columns)
                raise CseError(f"--where: no column {name!r}{near}; the columns are {listed(self.columns)}") from None
            if where is not None and "parser error" in said:
                raise CseError(f'--where: {where[:80]!r} is not a condition in SQL, such as "id = 7"') from None
            if "Not found" in said:
                raise CseError(
                    f"{self.url}: the index was removed during the search; build it again (cse index)"
                ) from None
            raise CseError(f"{self.url}: the search failed: {one_line(said)[:300]}") from None


def _lent(found: pa.Table) -> pa.Table:
    """Return the rows of a hybrid search, best first, once they have lent each other their scores, without vectors."""
    width = found.schema.field(EMBEDDING).type.list_size
    vectors = found[EMBEDDING].combine_chunks().flatten().to_numpy().reshape(len(found), width)
    scores = lend(found[_SCORE].to_numpy().astype(np.float64), vectors)
    found = found.drop_columns([EMBEDDING])
    found = found.set_column(found.column_names.index(_SCORE), _SCORE, pa.array(scores))
    return found.take(np.argsort(-scores, kind="stable"))


def open_table(url: str) -> SearchTable:
    """Open the index in a folder, as the last finished build or update left it.

    Raises:
        CseError: no index, one that was never finished, another program's table, or lancedb is not installed.
    """
    folder = Folder(url)
    names = folder.names()
    if TABLE_FOLDER not in names:
        near = "" if names or not folder.local else nearest(url, map(str, Path(url).parent.glob("*/")))
        raise CseError(f"{url}: no index here{near or f'; build it with `cse index {url}`'}")
    table = connect(folder).open_table(TABLE)
    try:
        table.checkout(READY)
    except (ValueError, RuntimeError, OSError):
        raise CseError(f"{url}: the index is not finished or damaged; build it again (cse index)") from None
    try:
        return SearchTable(table, url, **json.loads((table.schema.metadata or {})[FACTS]))
    except (KeyError, ValueError, TypeError):
        raise CseError(f"{folder / TABLE_FOLDER}: not an index of `cse index`; build it again") from None
