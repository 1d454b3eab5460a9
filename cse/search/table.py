"""An index: a LanceDB table of passages with their vectors, and of documents with their words, on disk or in a bucket.

A row is a passage; the first of a document has its words, and its text where there are more. Every run of `cse index`
makes new versions of the table; the tag ``ready`` names the last one that is whole. A search reads that version to its
end, whatever is written meanwhile. What made the table stands in its metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cse.artifact import Kind, check_seal, sealed
from cse.data.checks import listed
from cse.errors import CseError, nearest, one_line
from cse.outputs import check_place
from cse.search.corpus import OWN
from cse.search.hybrid import DEPTH, fuse, search
from cse.search.words import tokens
from cse.storage import Folder

Mode = Literal["hybrid", "vectors", "words"]
MODES: tuple[Mode, ...] = get_args(Mode)

TABLE = "index"
TABLE_FOLDER, LOCK = f"{TABLE}.lance", ".cse-lock"
FACTS = b"cse"  # key of the table's metadata
FORMAT = 6  # of the table
READY = "ready"
PASSAGE, DOCUMENT, EMBEDDING, WORDS, KEY = OWN[1], *OWN[3:]
_SHOWN = "id", PASSAGE, "text"
_MANIFEST = Kind.INDEX.manifest  # in the table's folder; its files never change under their names
_CHANGING = ("_refs/", "_versions/latest_version_hint.json", _MANIFEST)
_AT_OPENING = 16 << 20  # bytes that are read to check the small files
ROW, COSINE, BM25, SCORE = "_rowid", "_cosine", "_score", "_relevance_score"  # columns of what a search finds
_BUCKETS = ("s3", "gs", "az")
_PROBES = 64  # partitions read, about a quarter of a million rows
_PER_ROW = 3  # of a hybrid search: rows whose exact cosine is computed, for each that it takes
_QUOTED = re.compile("'[^']*'|\"[^\"]*\"|`[^`]*`")
_OF_DEPTH = 20, 10, 5, 4, 2, 1  # a search by vectors reads such a part of the ``DEPTH`` rows whose cosine is computed


@dataclass(frozen=True)
class Hit:
    """A document found, by its best passage.

    Attributes:
        score: what ranks it: the cosine, BM25 of its words, or of a hybrid search half of each, scaled to 0 to 1
            among the documents that either found, and lent among those that are alike (``cse.search.hybrid``).
        cosine: of the passage with the query; None in a search by words.
        bm25: of the document; None where no word of it is in the query, or where it is not among the best by words.
        passage: number of the passage, from 0; of a search by words, 0.
        text: that of the passage; of a search by words, of the document.
        values: the kept columns, by name.
    """

    id: int | str
    score: float
    cosine: float | None
    bm25: float | None
    passage: int
    text: str
    values: dict[str, Any]


class _Asked(NamedTuple):
    """A query, its vector (none of a search by words), and the rows among which it is searched."""

    query: str
    vector: NDArray[np.float32] | None
    where: str | None
    exact: bool
    k: int


@dataclass(frozen=True)
class SearchTable:
    """An open index, fixed at the version that was ready then."""

    table: Any
    url: str
    facts: dict[str, Any]

    @cached_property
    def dimension(self) -> int:
        """Width of a vector."""
        return int(self.table.schema.field(EMBEDDING).type.list_size)

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns that a search shows."""
        return [name for name in self.table.schema.names if name not in OWN or name in _SHOWN]

    @cached_property
    def rows(self) -> int:
        """Number of passages."""
        return int(self.table.count_rows())

    @cached_property
    def documents(self) -> int:
        """Number of documents."""
        return int(self.table.count_rows(f"{PASSAGE} = 0"))

    def __len__(self) -> int:
        return self.documents

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
        """Return at most ``k`` documents for each query, best first; of those with equal cosines the earlier.

        The first are the same whatever ``k`` is.

        Args:
            vectors: their vectors (q, d) of unit length; None for mode ``words``.
            k: fewer are returned if there are fewer documents, or if the words of a query are in fewer.
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
            given = [None] * len(queries) if vectors is None or mode == "words" else vectors
            return [
                self._best(_Asked(query, vector, where, exact, k), mode)
                for query, vector in zip(queries, given, strict=True)
            ]

    def whole(self, hits: Sequence[Hit]) -> dict[int | str, str]:
        """Return the whole texts of documents, by their ids."""
        rows = self._of_documents([hit.id for hit in hits], ["id", "text", DOCUMENT], f"{PASSAGE} = 0")
        return {row["id"]: row[DOCUMENT] if row[DOCUMENT] is not None else row["text"] for row in rows.to_pylist()}

    def _best(self, asked: _Asked, mode: Mode) -> list[Hit]:
        """Rank the best ``DEPTH`` documents, then those among the best twice ``DEPTH`` that are new, and so on.

        What is shown of them is read at the end, of the ``k`` best alone.
        """
        found, depth, least = dict[int | str, dict[str, Any]](), DEPTH, np.inf
        ranks = {"hybrid": self._both, "words": self._worded, "vectors": self._near}[mode]
        column = {"hybrid": SCORE, "words": BM25, "vectors": COSINE}[mode]
        while True:
            for row in ranks(asked, depth).to_pylist():
                if row["id"] not in found and len(found) < asked.k:
                    least = min(least, row[column])  # a deeper scale would give a later one more
                    found[row["id"]] = {**row, SCORE: least}
            if len(found) >= asked.k or depth >= self.documents:
                return self._shown([*found.values()], whole=mode == "words")
            depth *= 2

    def _shown(self, found: Sequence[Mapping[str, Any]], *, whole: bool) -> list[Hit]:
        """Read the passages that were found, if the search did not, or their whole documents."""
        rows = {each[ROW]: each for each in found}
        if found and not found[0].keys() >= {*self.columns}:
            columns = [*self.columns, *([DOCUMENT] if whole else [])]
            read = self.table.take_row_ids([*rows]).select(columns).with_row_id().to_arrow()
            rows = {row[ROW]: row for row in read.to_pylist()}
        hits = []
        for each in found:
            row = rows[each[ROW]]
            text = row["text"] if row.get(DOCUMENT) is None else row[DOCUMENT]
            kept = {name: row[name] for name in self.columns if name not in _SHOWN}
            hits.append(Hit(row["id"], each[SCORE], each.get(COSINE), each.get(BM25), row[PASSAGE], text, kept))
        return hits

    def _near(self, asked: _Asked, depth: int) -> pa.Table:
        """Return the nearest passages, best first; no more than asked for, but always of the same candidates."""
        few = self.rows == self.documents and depth == DEPTH
        each = next(each for each in _OF_DEPTH if each == 1 or (few and depth // each >= asked.k))
        columns = self.columns if each > 1 else ["id"]  # of few rows at once what is shown
        rows = self._nearest(asked, depth // each, columns, each)
        return rows.append_column(COSINE, pc.subtract(1.0, rows["_distance"]))

    def _nearest(self, asked: _Asked, depth: int, columns: Sequence[str], refined: int) -> pa.Table:
        """Return the nearest passages, enough for so many documents on average.

        Args:
            refined: rows whose exact cosine is computed, for each of these.
        """
        # of unit vectors: a zero vector has no cosine distance and would be left out
        builder = self.table.search(asked.vector, EMBEDDING, "vector").distance_type("dot").nprobes(_PROBES)
        builder = builder.refine_factor(refined)
        builder = builder.bypass_vector_index() if asked.exact else builder
        return self._read(builder, asked, [*columns, "_distance"], -(-depth * self.rows // max(self.documents, 1)))

    def _worded(self, asked: _Asked, depth: int, *more: str) -> pa.Table:
        """Return the first passages of the documents with the best words, of equal ones the earlier first."""
        from lancedb.query import MatchQuery

        builder = self.table.search(MatchQuery(" ".join(tokens(asked.query)), WORDS), query_type="fts")
        rows = self._read(builder, asked, ["id", *more, BM25], depth)
        return rows.sort_by([(BM25, "descending"), (ROW, "ascending")])

    def _read(self, builder: Any, asked: _Asked, columns: Sequence[str], count: int) -> pa.Table:
        builder = builder if asked.where is None else builder.where(asked.where, prefilter=True)
        return builder.select(list(columns)).with_row_id(True).limit(max(min(count, self.rows), 1)).to_arrow()

    def _both(self, asked: _Asked, depth: int) -> pa.Table:
        """Return the documents that vectors and words found by their best passages, best first, without vectors."""
        columns = ["id", EMBEDDING]
        near, worded = self._nearest(asked, depth, columns, _PER_ROW), self._worded(asked, depth, EMBEDDING)
        new = worded.filter(pc.invert(pc.is_in(worded["id"], near["id"].combine_chunks())))
        if self.rows > self.documents:  # words find the first passage of a document, another may be nearer
            new = self._of_documents(new["id"].to_pylist(), columns, asked.where)
        rows = pa.concat_tables([near, new], promote_options="default").select([*columns, ROW])
        vectors = rows[EMBEDDING].combine_chunks().flatten().to_numpy().reshape(-1, self.dimension)
        cosines = vectors @ asked.vector
        ids = rows["id"].to_pylist()
        nearest_first = {ids[row]: int(row) for row in np.argsort(-cosines, kind="stable")[::-1]}
        best = sorted(nearest_first.values())  # of each document the nearest passage
        rows = rows.drop_columns([EMBEDDING]).take(pa.array(best, pa.int64()))
        vectors, cosines = vectors[best], cosines[best]
        bm25 = dict(zip(worded["id"].to_pylist(), worded[BM25].to_pylist(), strict=True))
        found = [bm25.get(ids[row]) for row in best]
        scored = np.array([score or 0 for score in found], np.float32)
        # beyond the first, nothing is lent: that would take time that grows with the square of the documents
        scores = search(cosines, scored, vectors) if depth == DEPTH else fuse(cosines, scored, depth)[0]
        for name, values in ((COSINE, cosines), (BM25, found), (SCORE, scores)):
            rows = rows.append_column(name, pa.array(values, pa.float64()))
        return rows.take(np.argsort(-scores, kind="stable")[:depth])

    def _of_documents(self, ids: Sequence[int | str], columns: Sequence[str], where: str | None) -> pa.Table:
        """Return the rows of documents that meet a condition."""
        named = f"id IN ({', '.join(map(literal, ids))})" if ids else "false"
        condition = named if where is None else f"{named} AND {where}"
        builder = self.table.search().where(condition).select(list(columns)).with_row_id(True)
        return builder.limit(self.rows).to_arrow()

    @contextmanager
    def _errors(self, where: str | None) -> Iterator[None]:
        try:
            yield
        except CseError:
            raise
        except Exception as error:  # what is damaged makes LanceDB panic, with a class of its own
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


def literal(key: int | str) -> str:
    """Return an id as SQL has it."""
    return str(key) if isinstance(key, int) else "'" + key.replace("'", "''") + "'"


def snippet(text: str, query: str, words: int = 30) -> str:
    """Return the part of a text, about so many words, that has the most of a query's words, on one line."""
    every = text.split()
    if len(every) <= words * 3 // 2:
        return " ".join(every)
    wanted = set(tokens(query))
    has = [set(tokens(word)) & wanted for word in every]
    starts = range(0, len(every) - words // 2, max(words // 4, 1))
    start = max(starts, key=lambda start: len(set().union(*has[start : start + words])))
    before, after = "... " if start else "", " ..." if start + words < len(every) else ""
    return f"{before}{' '.join(every[start : start + words])}{after}"


# ---- the folder -----------------------------------------------------------------------------------------------------


def open_table(url: str) -> SearchTable:
    """Open the index in a folder, as the last finished run of `cse index` left it."""
    folder = Folder(url)
    names = folder.names()
    if TABLE_FOLDER not in names:
        near = "" if names or not folder.local else nearest(url, map(str, Path(url).parent.glob("*/")))
        raise CseError(f"{url}: no index here{near or f'; make one with `cse index TEXTS --out {url}`'}")
    database = connect(folder)
    check_files(folder)
    try:
        table = database.open_table(TABLE)
        table.checkout(READY)
    except Exception:  # as in `opened`
        raise CseError(f"{url}: the index is not finished or damaged; {_again(url)}") from None
    return SearchTable(table, url, facts_of(table, folder))


def facts_of(table: Any, folder: Folder) -> dict[str, Any]:
    """Return what made a table."""
    try:
        facts: dict[str, Any] = json.loads((table.schema.metadata or {})[FACTS])
        if facts.pop("format", 1) == FORMAT:
            return facts
    except (KeyError, ValueError, TypeError):
        raise _foreign(folder) from None
    raise CseError(f"{folder.url}: an index of another version; make it again (cse index --again)")


def _foreign(folder: Folder) -> CseError:
    return CseError(f"{folder / TABLE_FOLDER}: a table that `cse index` did not make; use another --out")


def opened(folder: Folder) -> Any:
    """Return the table in a folder; None if it was never finished or is damaged."""
    database = connect(folder)
    try:
        return database.open_table(TABLE)
    except Exception:  # what is cut at some byte makes LanceDB panic, with a class of its own
        return None


def connect(folder: Folder) -> Any:
    """Open a folder as a LanceDB database."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # its warnings speak to programmers
    try:
        import lancedb
    except ImportError:
        raise CseError("the index needs LanceDB: pip install 'cse[search]'") from None
    if folder.local:
        return lancedb.connect(folder.path)
    if folder.url.partition("://")[0] not in _BUCKETS:
        raise CseError(f"{folder.url}: an index lies on a disk or in a bucket ({'://, '.join(_BUCKETS)}://)")
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:")
    return lancedb.connect(folder.url, storage_options={"allow_http": "true"} if plain else None)


def refuse_foreign(folder: Folder) -> None:
    """Refuse a folder that holds anything but an index of `cse index`, finished, damaged or not."""
    names = folder.names() - {LOCK}
    if folder.local:
        check_place(Path(folder.path))
    if foreign := names - {TABLE_FOLDER, f"{TABLE}.log"}:  # the log of earlier versions
        raise CseError(
            f"{folder.url}: holds files that `cse index` did not put there ({min(foreign)}); use another --out "
            "or move them away"
        )
    table = opened(folder) if TABLE_FOLDER in names else None
    if table is not None and FACTS not in (table.schema.metadata or {}):
        raise _foreign(folder)


def record(folder: Folder) -> None:
    """Write the manifest of a table, with the sizes of its files; hashes that it has already stay."""
    known, sizes = _manifest(folder).get("files", {}), _files(folder)
    files = {name: known.get(name) or _digest(folder, name) for name in sizes}
    tree = sealed({"kind": Kind.INDEX, "files": files, "sizes": sizes})
    folder.fs.pipe_file(f"{folder.path}/{TABLE_FOLDER}/{_MANIFEST}", json.dumps(tree).encode())


def check_files(folder: Folder, *, whole: bool = False) -> int:
    """Compare the files of a table with its manifest, and return how many there are.

    At opening, their sizes, and on a disk the content of the small ones; ``whole``, all.
    """
    known, there, left = _manifest(folder), _files(folder), _AT_OPENING if folder.local else 0
    if not known:
        raise CseError(f"{folder.url}: the index is not finished or damaged; {_again(folder.url)}")
    for name, size in sorted(known["sizes"].items(), key=lambda each: each[1]):
        left -= size
        if there.get(name) != size or ((whole or left >= 0) and _digest(folder, name) != known["files"].get(name)):
            state = "not as it was written" if name in there else "missing"
            raise CseError(f"{folder / TABLE_FOLDER}/{name}: {state}; {_again(folder.url)}")
    return len(known["files"])


def _again(url: str) -> str:
    return f"run `cse index` again with --out {url}, and --again if it is damaged"


def _files(folder: Folder) -> dict[str, int]:
    """Return the sizes of the table's files that never change, by name."""
    folder.fs.invalidate_cache()
    found = folder.fs.find(f"{folder.path}/{TABLE_FOLDER}/", detail=True)
    sizes = {path.partition(f"{TABLE_FOLDER}/")[2]: info["size"] for path, info in found.items()}
    return {name: size for name, size in sizes.items() if not name.startswith(_CHANGING)}


def _manifest(folder: Folder) -> dict[str, Any]:
    """Return the manifest of a finished table; empty if it has none that is whole."""
    try:
        found: dict[str, Any] = json.loads(folder.read(f"{TABLE_FOLDER}/{_MANIFEST}"))
        check_seal(found, Path(_MANIFEST), "")
        return found if {"files", "sizes"} <= found.keys() else {}
    except (OSError, ValueError, AttributeError):
        return {}


def _digest(folder: Folder, name: str) -> str:
    with folder.open(f"{TABLE_FOLDER}/{name}") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
