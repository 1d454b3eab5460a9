"""Bring a table up to date with a corpus: what it has already is not embedded again.

Each document has a key, a hash of all that its rows are made of. A run deletes the documents whose keys the corpus does
not have, embeds those whose keys the table does not have, and commits them some at a time. So a killed run, a changed
text, a new one and one that is gone are one case.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cse.errors import CseError, Interrupted, full_disk_in, one_line
from cse.process import handling, only_one
from cse.runtime.bundle import MODEL
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.providers import no_cuda_reason, open_graph
from cse.search.corpus import Columns, Corpus, Document, hashed, says_something
from cse.search.model import CorpusModel, difference, find_model, model_facts
from cse.search.rows import CUT, DOMAIN, PIECE, SECTIONS, Maker, Ready, Recipe
from cse.search.table import (
    DOCUMENT,
    EMBEDDING,
    FACTS,
    FORMAT,
    KEY,
    LOCK,
    LOG,
    PASSAGE,
    READY,
    TABLE,
    TABLE_FOLDER,
    WORDS,
    check_files,
    connect,
    facts_of,
    record,
    refuse_foreign,
)
from cse.storage import Folder

Kind = Literal["auto", "exact", "approximate"]

_COMMIT_ROWS, _COMMIT_SECONDS = 8192, 15.0  # between two commits, which a killed run may lose
_EXACT_ROWS = 20_000  # up to here comparing every vector takes 20 ms; of 100,000, 100 ms and 700 MB
_LINE_SECONDS = 15.0  # between two lines of progress


@dataclass(frozen=True)
class Choices:
    """How to index.

    Attributes:
        batch_size: most rows per forward pass; None: as the encoder chooses.
        threads: of the encoder in this process; None: one per core.
        changes: whether the corpus is a part, and documents that it does not have stay.
        again: whether to delete an earlier index and start over.
        kind: ``exact`` compares every vector; ``approximate`` reads the nearest partitions of an IVF index, whose
            vectors are quantised by RaBitQ (Gao and Long 2024, arXiv 2405.12497), and computes the exact cosine of the
            best; ``auto`` does so above 20,000 rows.
        kept: vectors of a bare backbone that are there already; for this process.
    """

    columns: Columns = field(default_factory=Columns)
    role: str | None = None
    workers: int | None = None
    batch_size: int | None = None
    provider: str = "auto"
    threads: int | None = None
    changes: bool = False
    again: bool = False
    kind: Kind = "auto"
    kept: KeptVectors | None = None


@dataclass(frozen=True)
class Indexed:
    """Summary of a run: documents and rows of the table now, and how many documents were embedded or taken away.

    Attributes:
        changed: documents among the new ones whose ids were there before.
        blank: ids of documents that say nothing.
        cut: documents of this run that are longer than the model reads, and not so long that they are split.
        limit: that limit in tokens, the shortest of several domains.
    """

    documents: int
    rows: int
    new: int
    changed: int
    gone: int
    blank: list[Any]
    cut: int
    limit: int
    approximate: bool


def index_corpus(url: str, out: str, model: str, choices: Choices) -> Indexed:
    """Bring the table in a folder up to date with a corpus.

    Args:
        url: file, folder or glob, as a path or a URL.
        out: the folder: a path, or a URL of a bucket.
        model: bundle, or a bank's domain (``BANK:NAME``); with a domain column, a bank.

    Raises:
        Interrupted: SIGTERM or SIGINT; the same call goes on.
    """
    chosen = find_model(model, choices.columns.domain)
    text = chosen.task_text(choices.role)
    folder = Folder(out)
    corpus = Corpus(url, choices.columns, folder, chosen.check_domain)
    refuse_foreign(folder)
    if choices.changes and corpus.format != "pages" and not corpus.columns.id:
        raise CseError(f"--changes: the rows of {url} have no ids, so they replace none; name theirs with --id-column")
    with _only_writer(folder), ExitStack() as stack:
        database = connect(folder)
        progress = stack.enter_context(_progress(folder))
        seen = _read(corpus, progress)
        facts = _facts(chosen, corpus, choices.role, text)
        run = _Run(folder, database, corpus, seen, json.loads(json.dumps(facts)), choices, progress)
        stack.enter_context(_in_one_line(folder))
        return run.work(_recipe(chosen, choices))


def verify_table(url: str) -> int:
    """Compare every byte of an index with what was written, and return how many files it has."""
    folder = Folder(url)
    with _only_writer(folder):
        return check_files(folder, whole=True)


def _facts(chosen: CorpusModel, corpus: Corpus, role: str | None, text: str) -> dict[str, Any]:
    """Return what makes the rows of a table, and what opens its model again."""
    named = {f"{name}_column": value for name, value in asdict(corpus.columns).items() if name != "encoding"}
    of_rows = {"model": model_facts(chosen), "role": role, "task_text": text, **named}
    return of_rows | {"bundle": chosen.name, "queries": chosen.queries}


def _recipe(chosen: CorpusModel, choices: Choices) -> Recipe:
    provider = choices.provider
    if provider == "auto":  # resolved once: vectors from a GPU and a CPU differ in the last digits
        provider = "cpu" if no_cuda_reason() else open_graph(Path(chosen.folder) / MODEL, "auto", 1).provider
    bundle = os.path.abspath(chosen.folder)  # noqa: PTH100 - workers may have another working folder
    return Recipe(
        bundle,
        chosen.domain,
        chosen.identities(),
        choices.role,
        limit=chosen.limit,
        dimension=chosen.dimension,
        batch_size=choices.batch_size,
        provider=provider,
        threads=choices.threads,
        kept=choices.kept,
    )


# ---- reading --------------------------------------------------------------------------------------------------------


@dataclass
class _Seen:
    """Keys and hashed ids (n) of the documents of a corpus that say something, and ids of those that do not."""

    keys: NDArray[np.int64]
    ids: NDArray[np.int64]
    blank: list[Any] = field(default_factory=list)


def _read(corpus: Corpus, progress: Progress) -> _Seen:
    """Read a corpus once, so that mistakes show before anything is embedded."""
    keys, ids, seen = [], [], _Seen(*np.empty((2, 0), np.int64))
    for number, document in enumerate(corpus, start=1):
        if says_something(document):
            keys.append(document.key)
            ids.append(hashed(repr(document.id)))
        else:
            seen.blank.append(document.id)
        progress.count(number, "rows read")
    seen.keys, seen.ids = np.array(keys, np.int64), np.array(ids, np.int64)
    every = np.concatenate([seen.ids, np.array([hashed(repr(key)) for key in seen.blank], np.int64)])
    values, counts = np.unique(every, return_counts=True)
    if counts.max(initial=1) > 1:
        twice = {int(value) for value in values[counts > 1]}
        key = next(document.id for document in corpus if hashed(repr(document.id)) in twice)
        raise CseError(
            f"{corpus.url}: id {key!r} occurs twice (column {corpus.columns.id!r}); give each row its own "
            "(--id-column), or number the rows (--id-column '')"
        )
    return seen


def _pieces(corpus: Corpus, wanted: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield the documents with these keys (sorted), so many at a time."""
    held: list[Document] = []
    for document in corpus:
        key = document.key
        place = int(np.searchsorted(wanted, key))
        if place < len(wanted) and wanted[place] == key and says_something(document):
            held.append(document)
        if len(held) == PIECE:
            yield _piece(corpus, held)
            held = []
    if held:
        yield _piece(corpus, held)


def _piece(corpus: Corpus, documents: Sequence[Document]) -> pa.Table:
    kept = zip(*(one.kept for one in documents), strict=True) if corpus.columns.kept else ()
    columns = {
        "id": pa.array([one.id for one in documents], pa.int64() if corpus.id_type == "int64" else pa.string()),
        "text": pa.array([one.text for one in documents], pa.string()),
        SECTIONS: pa.array([list(one.sections) for one in documents], pa.list_(pa.string())),
        DOMAIN: pa.array([one.domain for one in documents], pa.string()),
        KEY: pa.array([one.key for one in documents], pa.int64()),
    }
    for name, values in zip(corpus.columns.kept, kept, strict=True):
        columns[name] = pa.array(list(values), pa.type_for_alias(corpus.kept.get(name, "string")))
    return pa.table(columns)


# ---- writing --------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """One run of `cse index`, once the corpus was read."""

    folder: Folder
    database: Any
    corpus: Corpus
    seen: _Seen
    facts: dict[str, Any]
    choices: Choices
    progress: Progress

    def work(self, recipe: Recipe) -> Indexed:
        """Delete, embed, commit, build the indexes, and let searches find the new version."""
        table = self._open(recipe)
        rows = table.search().where(f"{PASSAGE} = 0").select(["id", KEY]).limit(table.count_rows() + 1).to_arrow()
        there = rows[KEY].to_numpy().astype(np.int64)
        missing = np.setdiff1d(self.seen.keys, there)
        gone = rows.filter(pa.array(~np.isin(there, self.seen.keys)))
        old = np.array([hashed(repr(key)) for key in gone["id"].to_pylist()], np.int64)
        new = self.seen.ids[np.isin(self.seen.keys, missing)]
        if self.choices.changes:  # what the corpus does not name stays
            known = np.concatenate([self.seen.ids, [hashed(repr(key)) for key in self.seen.blank]])
            named = np.isin(old, known)
            gone, old = gone.filter(pa.array(named)), old[named]
        changed = int(np.isin(new, old).sum())
        keys = gone[KEY].to_pylist()
        self.progress.say(
            f"{len(self.seen.keys):,} documents: {len(missing) - changed:,} new, {changed:,} changed, "
            f"{len(keys) - changed:,} gone, {len(self.seen.keys) - len(missing):,} as they were"
        )
        for start in range(0, len(keys), 1000):
            table.delete(f"{KEY} IN ({', '.join(map(str, keys[start : start + 1000]))})")
        cut = self._embed(table, recipe, missing) if len(missing) else 0
        if table.tags.list().get(READY, {}).get("version") != table.version:  # or an earlier run was killed before
            self._publish(table)
        documents, count = table.count_rows(f"{PASSAGE} = 0"), table.count_rows()
        approximate = any(index.columns == [EMBEDDING] for index in table.list_indices())
        counts = len(missing), changed, len(keys) - changed
        return Indexed(documents, count, *counts, self.seen.blank, cut, recipe.limit, approximate)

    def _open(self, recipe: Recipe) -> Any:
        """Return the table, made now where there is none."""
        schema = self._schema(recipe)
        if self.choices.again or TABLE_FOLDER not in self.folder.names():
            if not len(self.seen.keys):
                raise CseError(f"{self.corpus.url}: no text says anything; name another column (--text-column)")
            if TABLE_FOLDER in self.folder.names():
                self.folder.remove(TABLE_FOLDER)
            return self.database.create_table(TABLE, schema=schema, mode="overwrite")
        try:
            table = self.database.open_table(TABLE)
        except (ValueError, RuntimeError, OSError):
            raise CseError(f"{self.folder.url}: the index is damaged; start over with --again") from None
        before = facts_of(table, self.folder)
        asked = {name: value for name, value in self.facts.items() if name not in ("bundle", "queries")}
        if changed := difference(before, asked):
            raise CseError(
                f"{self.folder.url}: made from different input: {changed}; use another --out, or --again to start over"
            )
        if READY in table.tags.list():
            check_files(self.folder)
        there, here = (dict(zip(one.names, map(str, one.types), strict=True)) for one in (table.schema, schema))
        for name, kind in here.items():
            if there.get(name) != kind and len(self.seen.keys):
                raise CseError(
                    f"{self.corpus.url}: column {name!r} holds {kind}, in {self.folder.url} {there.get(name)}; give "
                    "one type, or start over with --again"
                )
        return table

    def _schema(self, recipe: Recipe) -> pa.Schema:
        kinds = {
            "id": pa.int64() if self.corpus.id_type == "int64" else pa.string(), PASSAGE: pa.int32(),
            "text": pa.string(), DOCUMENT: pa.string(),
            **{name: pa.type_for_alias(self.corpus.kept.get(name, "string")) for name in self.corpus.columns.kept},
            EMBEDDING: pa.list_(pa.float32(), recipe.dimension), WORDS: pa.string(), KEY: pa.int64(),
        }  # fmt: skip
        return pa.schema(kinds, {FACTS: json.dumps(self.facts | {"format": FORMAT})})

    def _embed(self, table: Any, recipe: Recipe, missing: NDArray[np.int64]) -> int:
        """Embed documents and commit their rows; return how many were cut."""
        progress, total = self.progress, len(missing)
        progress.say(f"embedding {total:,} documents with {self.facts['bundle']} ({recipe.provider})")
        done = cut = 0

        def stop(number: int) -> None:
            raise Interrupted(number, f"after {done:,} of {total:,} documents")

        with ExitStack() as stack:
            made = _made(stack, recipe, _pieces(self.corpus, missing), total, self.choices.workers, progress)
            stack.enter_context(handling(stop, signal.SIGTERM, signal.SIGINT))  # after Ray, which sets handlers too
            held: list[pa.Table] = []
            committed = time.monotonic()
            for rows in made:
                cut += int(rows[CUT].to_numpy().sum())
                held.append(rows.select(table.schema.names))
                done += int((rows[PASSAGE].to_numpy() == 0).sum())
                progress.count(done, "documents", total)
                late = time.monotonic() - committed > _COMMIT_SECONDS
                if late or sum(map(len, held)) >= _COMMIT_ROWS or done == total:
                    table.add(pa.concat_tables(held).cast(table.schema))
                    held, committed = [], time.monotonic()
        return cut

    def _publish(self, table: Any) -> None:
        """Bring the indexes up to date, and let searches find this version; versions of the last week stay."""
        from lancedb.index import FTS, BTree, IvfRq

        rows = table.count_rows()
        self.progress.say(f"indexing words and vectors of {rows:,} rows")
        table.optimize()
        there = {name for index in table.list_indices() for name in index.columns}
        exactly = FTS(
            base_tokenizer="whitespace", stem=False, remove_stop_words=False, lower_case=False, ascii_folding=False,
            max_token_length=None,
        )  # fmt: skip
        wanted: dict[str, Any] = {"id": BTree(), WORDS: exactly}
        if self.choices.kind == "approximate" or (self.choices.kind == "auto" and rows > _EXACT_ROWS):
            wanted[EMBEDDING] = IvfRq(distance_type="dot")
        elif self.choices.kind == "exact" and EMBEDDING in there:
            table.drop_index(next(index.name for index in table.list_indices() if index.columns == [EMBEDDING]))
        for name, config in wanted.items():
            if name not in there and rows:
                table.create_index(name, config=config)
        record(self.folder)
        tags = table.tags
        (tags.update if READY in tags.list() else tags.create)(READY, table.version)


def _made(
    stack: ExitStack, recipe: Recipe, pieces: Iterator[pa.Table], total: int, workers: int | None, progress: Progress
) -> Iterator[pa.Table]:
    """Yield the rows of pieces: made here, or by workers."""
    if not workers:
        beside = stack.enter_context(ThreadPoolExecutor(1, "beside"))
        return _one_by_one(Maker(recipe), pieces, beside)
    from cse.search.workers import made_by_workers

    return made_by_workers(stack, recipe, pieces, total, workers, progress.say)


def _one_by_one(maker: Maker, pieces: Iterator[pa.Table], beside: ThreadPoolExecutor) -> Iterator[pa.Table]:
    """Yield the rows of pieces; while one is embedded, another thread reads and prepares the next."""

    def prepared() -> Ready | None:
        piece = next(pieces, None)
        return None if piece is None else maker.prepare(piece)

    following = beside.submit(prepared)
    while (ready := following.result()) is not None:
        following = beside.submit(prepared)
        yield maker.embed(ready)


@contextmanager
def _only_writer(folder: Folder) -> Iterator[None]:
    """Keep a second run from writing to the same folder; an object store has no locks."""
    if not folder.local:
        yield
        return
    place = Path(folder.path)
    with only_one(place / LOCK, f"{folder.url}: another `cse index` writes here; wait for it or use another --out"):
        yield


@contextmanager
def _in_one_line(folder: Folder) -> Iterator[None]:
    """Turn an error of LanceDB into one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, CseError):
            raise
        if number := full_disk_in(str(error)):
            raise OSError(number, os.strerror(number), folder / TABLE_FOLDER) from None
        raise CseError(f"{folder / TABLE_FOLDER}: cannot be written: {one_line(str(error))[:300]}") from None


# ---- progress -------------------------------------------------------------------------------------------------------


class Progress:
    """Says what is done, how far it is and how long it will take, a line every 15 seconds.

    Args:
        log: also gets the lines, each with the time of day.
    """

    def __init__(self, stream: TextIO, log: TextIO | None) -> None:
        self._stream, self._log = stream, log
        self._began = self._said = time.monotonic()

    def say(self, line: str) -> None:
        """Say a line, and start the clock for what it says."""
        self._began = self._line(line)

    def count(self, done: int, what: str, total: int = 0) -> None:
        """Say how much is done if it is time for a line."""
        now = time.monotonic()
        if now - self._said >= _LINE_SECONDS:
            rate = done / (now - self._began)
            left = f", {rate:,.0f}/s, {duration((total - done) / rate)} left" if total else ""
            self._line(f"{done:,}{f' of {total:,}' if total else ''} {what}{left}")

    def _line(self, line: str) -> float:
        self._said = time.monotonic()
        self._stream.write(f"index: {line}\n")
        self._stream.flush()
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
            self._log.flush()
        return self._said


@contextmanager
def _progress(folder: Folder) -> Iterator[Progress]:
    with ExitStack() as stack:
        stream = stack.enter_context(_own_stderr())
        log = stack.enter_context(Path(folder.path, LOG).open("w", encoding="utf-8")) if folder.local else None
        yield Progress(stream, log)


def duration(seconds: float) -> str:
    """Return seconds in words: ``42 s``, ``5 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def _own_stderr() -> Iterator[TextIO]:
    """Yield a copy of standard error, which stays open when its descriptor is redirected."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # an in-memory stream, or none
        yield sys.stderr
        return
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
        yield stream
