"""The search index: a LanceDB table of ids, vectors, texts and kept columns beside the shards, on disk or in a bucket.

Every build and update makes new versions of the table; the tag ``ready`` names the last one that is whole. A search
reads that version to its end, whatever is written meanwhile, and a killed build leaves the one before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cse.data.checks import listed
from cse.errors import CseError, nearest, one_line
from cse.scale.corpus.database import FACTS, FORMAT, TABLE, TABLE_FOLDER, WORDS, check_files, connect
from cse.scale.corpus.shard import EMBEDDING
from cse.search.hybrid import DEPTH, fuse, search
from cse.search.words import tokens
from cse.storage import Folder

Mode = Literal["hybrid", "vectors", "words"]
MODES: tuple[Mode, ...] = get_args(Mode)

_PROBES = 128  # partitions read, about half of a million rows: one bit per number is quick to read
_PER_ROW = 3  # of a hybrid search: rows whose exact cosine is computed, for each that it takes
READY = "ready"
_QUOTED = re.compile("'[^']*'|\"[^\"]*\"|`[^`]*`")
SCORE = "_relevance_score"  # column of what a hybrid search ranks by


@dataclass(frozen=True)
class Hit:
    """A row found.

    Attributes:
        score: what ranks it: the cosine, BM25 of its words, or of a hybrid search half of each, scaled to 0 to 1
            among the rows that either found, and lent among those that are alike (``cse.search.hybrid``).
        cosine: with the query; None where words alone found it.
        bm25: None where no word of it is in the query, or it is not among the best.
        values: the text, if it is stored, and the kept columns, by name.
    """

    id: int | str
    score: float
    cosine: float | None
    bm25: float | None
    values: dict[str, Any]
    row: int = -1


@dataclass(frozen=True)
class SearchTable:
    """An open index, fixed at the version that was ready then.

    Attributes:
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
        """Names of the columns besides vector and words."""
        return [name for name in self.table.schema.names if name not in (EMBEDDING, WORDS)]

    @property
    def has_text(self) -> bool:
        """Whether it has words to search."""
        return WORDS in self.table.schema.names

    @property
    def approximate(self) -> bool:
        """Whether it compares the nearest partitions alone."""
        return any(index.columns == [EMBEDDING] for index in self.table.list_indices())

    def __len__(self) -> int:
        return int(self.table.count_rows())

    def mode(self, asked: Mode | None) -> Mode:
        """Return how to search: as asked, or hybrid where there is text."""
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

        The first rows are the same whatever ``k`` is.

        Args:
            vectors: their vectors (q, d) of unit length; None for mode ``words``.
            k: fewer are returned if there are fewer rows, or if the words of a query are in fewer.
            where: SQL condition on columns that rows must meet.
            exact: compare every vector even if the index is approximate.
        """
        for number, query in enumerate(queries, start=1):
            if not query.strip():
                raise CseError(f"search: query {number} is empty; write at least a word")
        if vectors is not None and vectors.shape != (len(queries), self.dimension):
            raise CseError(
                f"search: {len(queries)} queries, vectors {vectors.shape}; {self.url} has {self.dimension} dimensions"
            )
        if where is not None:
            # in brackets, or whatever follows the condition would be ignored
            outside = _QUOTED.sub("", where)
            if min(accumulate((sign == "(") - (sign == ")") for sign in outside), default=-1) < 0:
                raise _no_condition(where)
            where = f"({where}\n)"
        with self._errors(where):
            return [
                self._one(query, None if vectors is None else vectors[row], k, mode, where, exact)
                for row, query in enumerate(queries)
            ]

    def _one(
        self, query: str, vector: NDArray[np.float32] | None, k: int, mode: Mode, where: str | None, exact: bool
    ) -> list[Hit]:
        """Rank the best ``DEPTH`` rows, then those among the best twice ``DEPTH`` that are new, and so on."""
        rows, hits, depth, least = len(self), dict[int, Hit](), DEPTH, np.inf
        while True:
            for hit in self._ranked(query, vector, depth, mode, where, exact, k - len(hits), hits.keys()):
                least = min(least, hit.score)  # a deeper scale would give a later row more
                hits[hit.row] = replace(hit, score=least)
            if len(hits) >= k or depth >= rows:
                return list(hits.values())
            depth *= 2

    def _ranked(
        self,
        query: str,
        vector: NDArray[np.float32] | None,
        depth: int,
        mode: Mode,
        where: str | None,
        exact: bool,
        most: int,
        known: Collection[int],
    ) -> Iterator[Hit]:
        """Yield at most so many rows that are not known, of the best ``depth``."""
        from lancedb.query import MatchQuery

        parts = []
        if vector is not None and mode != "words":
            # of unit vectors: a zero vector has no cosine distance and would be left out
            builder = self.table.search(vector, EMBEDDING, "vector").distance_type("dot").nprobes(_PROBES)
            builder = builder.refine_factor(_PER_ROW if mode == "hybrid" else 1)
            parts.append(builder.bypass_vector_index() if exact else builder)
        if mode != "vectors":
            parts.append(self.table.search(MatchQuery(" ".join(tokens(query)), WORDS), query_type="fts"))
        columns = [*self.columns, *([EMBEDDING] if mode == "hybrid" else [])]
        found = []
        for part, score in zip(parts, ["_score"] if mode == "words" else ["_distance", "_score"], strict=False):
            part = part if where is None else part.where(where, prefilter=True)
            found.append(
                part.select([*columns, score]).with_row_id(True).limit(max(min(depth, len(self)), 1)).to_arrow()
            )
        rows = found[0]
        if mode == "hybrid" and vector is not None:
            rows = _both(rows, found[1], vector, depth)
        elif mode == "words":
            rows = rows.sort_by([("_score", "descending"), ("_rowid", "ascending")])
        order = np.flatnonzero(~np.isin(rows["_rowid"].to_numpy(), list(known)))[:most]
        for row in rows.take(order).to_pylist():
            yield self._hit(row, mode)

    def _hit(self, row: dict[str, Any], mode: Mode) -> Hit:
        distance, bm25 = row.get("_distance"), row.get("_score")
        cosine = None if distance is None else 1 - distance
        score: float = {"hybrid": row.get(SCORE), "words": bm25, "vectors": cosine}[mode]  # type: ignore[assignment]
        values = {name: row[name] for name in self.columns if name != "id"}
        return Hit(row["id"], score, cosine, bm25, values, row["_rowid"])

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
            if where is not None and ("parser error" in said or "SQL predicate" in said):
                raise _no_condition(where[1:-2]) from None
            if where is not None and said.startswith("Invalid input"):
                reason = re.sub(r",? */\S+\.rs:\d+:\d+|.*: Invalid user input: |Invalid input, ", "", one_line(said))
                raise CseError(f"--where: {where[1:-2][:80]!r} is not a condition: {reason[:200]}") from None
            if "Not found" in said:
                raise CseError(
                    f"{self.url}: the index was removed during the search; build it again (cse index)"
                ) from None
            raise CseError(f"{self.url}: the search failed: {one_line(said)[:300]}") from None


def _no_condition(where: str) -> CseError:
    return CseError(f'--where: {where[:80]!r} is not a condition in SQL, such as "id = 7"')


def _both(near: pa.Table, worded: pa.Table, vector: NDArray[np.float32], depth: int) -> pa.Table:
    """Return the rows that vectors and words found, best first, at most ``depth``, without vectors."""
    new = pa.array(~np.isin(worded["_rowid"].to_numpy(), near["_rowid"].to_numpy()))
    rows = pa.concat_tables([near, worded.filter(new)], promote_options="default")
    vectors = rows[EMBEDDING].combine_chunks().flatten().to_numpy().reshape(-1, len(vector))
    cosines = vectors @ vector
    bm25 = dict(zip(worded["_rowid"].to_pylist(), worded["_score"].to_pylist(), strict=True))
    found = [bm25.get(row) for row in rows["_rowid"].to_pylist()]
    scored = np.array([score or 0 for score in found], np.float32)
    # beyond the first, nothing is lent: that would take time that grows with the square of the rows
    scores = search(cosines, scored, vectors) if depth == DEPTH else fuse(cosines, scored, depth)[0]
    rows = rows.drop_columns([EMBEDDING, "_distance", "_score"])
    for name, values in (("_distance", 1 - cosines), ("_score", found), (SCORE, scores)):
        rows = rows.append_column(name, pa.array(values, pa.float64()))
    return rows.take(np.argsort(-scores, kind="stable")[:depth])


def open_table(url: str) -> SearchTable:
    """Open the index in a folder, as the last finished build or update left it."""
    folder = Folder(url)
    names = folder.names()
    if TABLE_FOLDER not in names:
        near = "" if names or not folder.local else nearest(url, map(str, Path(url).parent.glob("*/")))
        raise CseError(f"{url}: no index here{near or f'; build it with `cse index {url}`'}")
    database = connect(folder)
    check_files(folder)
    try:
        table = database.open_table(TABLE)
        table.checkout(READY)
    except (ValueError, RuntimeError, OSError):
        raise CseError(f"{url}: the index is not finished or damaged; build it again: cse index {url}") from None
    try:
        facts = json.loads((table.schema.metadata or {})[FACTS])
        if facts.pop("format", 1) == FORMAT:
            return SearchTable(table, url, **facts)
    except (KeyError, ValueError, TypeError):
        raise CseError(f"{folder / TABLE_FOLDER}: not an index of `cse index`; build it again") from None
    raise CseError(f"{url}: an index of another version; build it again (cse index)")
