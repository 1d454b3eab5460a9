"""Bring a table up to date with a corpus: what it has already is not embedded again.

Each document has a key, a hash of all that its rows are made of. A run deletes the documents whose keys the corpus does
not have, embeds those whose keys the table does not have, and commits them some at a time. So a killed run, a changed
text, a new one and one that is gone are one case.
"""

from __future__ import annotations

import json
import os
import signal
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cse.errors import CseError, Interrupted, full_disk_in, one_line
from cse.process import handling, only_one
from cse.runtime.bank import Bank
from cse.runtime.bundle import MODEL
from cse.runtime.session import no_cuda_reason, open_graph
from cse.search.corpus import Corpus, Document, hashed, says_something
from cse.search.model import CorpusModel, difference, find_model
from cse.search.rows import PIECE, Choices, Made, Maker, Pieces, Ready
from cse.search.table import (
    DOCUMENT,
    EMBEDDING,
    FACTS,
    FORMAT,
    KEY,
    LOCK,
    PASSAGE,
    READY,
    TABLE,
    TABLE_FOLDER,
    WORDS,
    check_files,
    connect,
    facts_of,
    opened,
    record,
    refuse_foreign,
)
from cse.storage import Folder

_COMMIT_ROWS, _COMMIT_SECONDS = 8192, 15.0  # between two commits, which a killed run may lose
_EXACT_ROWS = 20_000  # up to here comparing every vector takes 20 ms; of 100,000, 100 ms and 700 MB
_LINE_SECONDS = 15.0  # between two lines of progress


@dataclass(frozen=True)
class Indexed:
    """Summary of a run: documents and rows of the table now, and how many documents were embedded or taken away.

    Attributes:
        changed: documents among the new ones whose ids were there before.
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
        model: bundle, or a bank's domain (``BANK:NAME``); with a domain column, a bank.

    Raises:
        Interrupted: SIGTERM or SIGINT; the same call goes on.
    """
    folder = Folder(out)
    refuse_foreign(folder)
    connect(folder)  # or it says at once what is missing
    chosen = find_model(model, choices.columns.domain, choices.role)
    bank = Bank(chosen.folder, whole=False)
    corpus = Corpus(url, choices.columns, folder, lambda name: bank.choose(name, 1))
    if choices.changes and corpus.format != "pages" and not corpus.columns.id:
        raise CseError(f"--changes: the rows of {url} have no ids, so they replace none; name theirs with --id-column")
    with _only_writer(folder):
        progress = Progress()
        seen = _read(corpus, progress)
        with _in_one_line(folder):
            return _Run(folder, corpus, seen, chosen, _on_one_provider(chosen, choices), progress).work()


def verify_table(url: str) -> int:
    """Compare every byte of an index with what was written, and return how many files it has."""
    folder = Folder(url)
    with _only_writer(folder):
        return check_files(folder, whole=True)


def _on_one_provider(model: CorpusModel, choices: Choices) -> Choices:
    """Resolve ``auto`` once: vectors from a GPU and a CPU differ in the last digits."""
    if choices.provider != "auto":
        return choices
    found = "cpu" if no_cuda_reason() else open_graph(Path(model.folder) / MODEL, "auto", 1).provider
    return replace(choices, provider=found)


# ---- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """Keys and hashed ids (n) of the documents of a corpus that say something, and ids of those that do not."""

    keys: NDArray[np.int64]
    ids: NDArray[np.int64]
    blank: list[Any]


def _read(corpus: Corpus, progress: Progress) -> _Seen:
    """Read a corpus once, so that mistakes show before anything is embedded."""
    keys, ids, blank = array("q"), array("q"), []
    for number, document in enumerate(corpus, start=1):
        if says_something(document):
            keys.append(document.key)
            ids.append(hashed(repr(document.id)))
        else:
            blank.append(document.id)
        progress.count(number, "rows read")
    seen = _Seen(np.array(keys, np.int64), np.array(ids, np.int64), blank)
    values, counts = np.unique(np.concatenate([seen.ids, _hashes(blank)]), return_counts=True)
    if counts.max(initial=1) > 1:
        twice = {int(value) for value in values[counts > 1]}
        key = next(document.id for document in corpus if hashed(repr(document.id)) in twice)
        raise CseError(
            f"{corpus.url}: id {key!r} occurs twice (column {corpus.columns.id!r}); give each row its own "
            "(--id-column), or number the rows (--id-column '')"
        )
    return seen


def _hashes(ids: Sequence[Any]) -> NDArray[np.int64]:
    return np.array([hashed(repr(key)) for key in ids], np.int64)


def _pieces(corpus: Corpus, wanted: NDArray[np.int64]) -> Iterator[list[Document]]:
    """Yield the documents with these keys (sorted), so many at a time."""
    held: list[Document] = []
    for document in corpus:
        place = int(np.searchsorted(wanted, document.key))
        if place < len(wanted) and wanted[place] == document.key and says_something(document):
            held.append(document)
        if len(held) == PIECE:
            yield held
            held = []
    if held:
        yield held


# ---- writing --------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """One run of `cse index`, once the corpus was read."""

    folder: Folder
    corpus: Corpus
    seen: _Seen
    model: CorpusModel
    choices: Choices
    progress: Progress

    def work(self) -> Indexed:
        """Delete, embed, commit, build the indexes, and let searches find the new version."""
        table, seen = self._open(), self.seen
        rows = table.search().where(f"{PASSAGE} = 0").select(["id", KEY]).limit(table.count_rows() + 1).to_arrow()
        there = rows[KEY].to_numpy().astype(np.int64)
        missing = np.setdiff1d(seen.keys, there)
        gone = rows.filter(pa.array(~np.isin(there, seen.keys)))
        old = _hashes(gone["id"].to_pylist())
        if self.choices.changes:  # what the corpus does not name stays
            named = np.isin(old, np.concatenate([seen.ids, _hashes(seen.blank)]))
            gone, old = gone.filter(pa.array(named)), old[named]
        changed = int(np.isin(seen.ids[np.isin(seen.keys, missing)], old).sum())
        keys = gone[KEY].to_pylist()
        self.progress.say(
            f"{len(seen.keys):,} documents: {len(missing) - changed:,} new, {changed:,} changed, "
            f"{len(keys) - changed:,} gone, {len(seen.keys) - len(missing):,} as they were"
        )
        for start in range(0, len(keys), 1000):
            table.delete(f"{KEY} IN ({', '.join(map(str, keys[start : start + 1000]))})")
        cut = self._embed(table, missing) if len(missing) else 0
        if table.tags.list().get(READY, {}).get("version") != table.version:  # or an earlier run was killed before
            self._publish(table)
        documents, count = table.count_rows(f"{PASSAGE} = 0"), table.count_rows()
        approximate = any(index.columns == [EMBEDDING] for index in table.list_indices())
        counts = len(missing), changed, len(keys) - changed
        return Indexed(documents, count, *counts, seen.blank, cut, self.model.limit, approximate)

    def _open(self) -> Any:
        """Return the table, made now where there is none."""
        url = self.folder.url
        named = {f"{name}_column": value for name, value in asdict(self.corpus.columns).items() if name != "encoding"}
        of_rows = {"model": self.model.facts, "role": self.choices.role, "task_text": self.model.task_text, **named}
        of_rows = json.loads(json.dumps(of_rows))
        opens = {"bundle": self.model.name, "format": FORMAT}
        schema = self._schema({FACTS: json.dumps(of_rows | opens)})
        if self.choices.again or TABLE_FOLDER not in self.folder.names():
            if not len(self.seen.keys):
                raise CseError(f"{self.corpus.url}: no text says anything; name another column (--text-column)")
            if TABLE_FOLDER in self.folder.names():
                self.folder.remove(TABLE_FOLDER)
            return connect(self.folder).create_table(TABLE, schema=schema, mode="overwrite")
        if (table := opened(self.folder)) is None:
            raise CseError(f"{url}: the index is damaged; start over with --again")
        if changed := difference(facts_of(table, self.folder), of_rows):
            raise CseError(f"{url}: made from different input: {changed}; use another --out, or --again to start over")
        if READY in table.tags.list():
            check_files(self.folder)
        there, here = (dict(zip(one.names, map(str, one.types), strict=True)) for one in (table.schema, schema))
        for name, kind in here.items():
            if there.get(name) != kind and len(self.seen.keys):
                raise CseError(
                    f"{self.corpus.url}: column {name!r} holds {kind}, in {url} {there.get(name)}; give one type, or "
                    "start over with --again"
                )
        return table

    def _schema(self, metadata: dict[bytes, str]) -> pa.Schema:
        kinds = {
            "id": pa.int64() if self.corpus.id_type == "int64" else pa.string(), PASSAGE: pa.int32(),
            "text": pa.string(), DOCUMENT: pa.string(),
            **{name: pa.type_for_alias(self.corpus.kept.get(name, "string")) for name in self.corpus.columns.kept},
            EMBEDDING: pa.list_(pa.float32(), self.model.dimension), WORDS: pa.string(), KEY: pa.int64(),
        }  # fmt: skip
        return pa.schema(kinds, metadata)

    def _embed(self, table: Any, missing: NDArray[np.int64]) -> int:
        """Embed documents and commit their rows; return how many were cut."""
        progress, total = self.progress, len(missing)
        progress.say(f"embedding {total:,} documents with {self.model.name} ({self.choices.provider})")
        done = cut = 0

        def stop(number: int) -> None:
            raise Interrupted(number, f"after {done:,} of {total:,} documents")

        with ExitStack() as stack:
            made = self._made(stack, table.schema, _pieces(self.corpus, missing), total)
            stack.enter_context(handling(stop, signal.SIGTERM, signal.SIGINT))  # after Ray, which sets handlers too
            held: list[pa.Table] = []
            committed = time.monotonic()
            for rows, more in made:
                cut += more
                held.append(rows)
                done += int((rows[PASSAGE].to_numpy() == 0).sum())
                progress.count(done, "documents", total)
                late = time.monotonic() - committed > _COMMIT_SECONDS
                if late or sum(map(len, held)) >= _COMMIT_ROWS or done == total:
                    table.add(pa.concat_tables(held))
                    held, committed = [], time.monotonic()
        return cut

    def _made(self, stack: ExitStack, schema: pa.Schema, pieces: Pieces, total: int) -> Iterator[Made]:
        """Yield the rows of pieces: made here, or by workers."""
        if self.choices.workers:
            from cse.search.workers import made_by_workers

            return made_by_workers(stack, (self.model, self.choices, schema), pieces, total, self.progress.say)
        beside = stack.enter_context(ThreadPoolExecutor(1))
        return _one_by_one(Maker(self.model, self.choices, schema), pieces, beside)

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


def _one_by_one(maker: Maker, pieces: Pieces, beside: ThreadPoolExecutor) -> Iterator[Made]:
    """Yield the rows of pieces; while one is embedded, another thread reads and prepares the next."""

    def prepared() -> Ready | None:
        piece = next(pieces, None)
        return None if piece is None else maker.prepare(piece)

    following = beside.submit(prepared)
    while (ready := following.result()) is not None:
        following = beside.submit(prepared)
        yield maker.embed(ready)


def _only_writer(folder: Folder) -> AbstractContextManager[None]:
    """Keep a second run from writing to the same folder; an object store has no locks."""
    if not folder.local:
        return nullcontext()
    refusal = f"{folder.url}: another `cse index` writes here; wait for it or use another --out"
    return only_one(Path(folder.path, LOCK), refusal)


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
    """Says what is done, how far it is and how long it will take, a line every 15 seconds."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()

    def say(self, line: str) -> None:
        """Say a line, and start the clock for what it says."""
        click.echo(f"index: {line}", err=True)
        self._began = self._said = time.monotonic()

    def count(self, done: int, what: str, total: int = 0) -> None:
        """Say how much is done if it is time for a line."""
        now = time.monotonic()
        if now - self._said >= _LINE_SECONDS:
            rate, self._said = done / (now - self._began), now
            left = f", {rate:,.0f}/s, {timedelta(seconds=round((total - done) / rate))} left" if total else ""
            click.echo(f"index: {done:,}{f' of {total:,}' if total else ''} {what}{left}", err=True)
