"""Build and update the search index: see ``cse.scale.corpus.table``, which reads it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from cse.data.checks import listed
from cse.errors import CseError, full_disk_in, one_line
from cse.scale.corpus.database import (
    FACTS,
    FORMAT,
    TABLE,
    TABLE_FOLDER,
    WORDS,
    check_files,
    connect,
    record,
    recorded,
    refuse_foreign,
    table_files,
)
from cse.scale.corpus.output import VectorStore, only_writer
from cse.scale.corpus.shard import EMBEDDING, left_out, shard_tables
from cse.scale.corpus.table import READY, SearchTable, open_table
from cse.search.words import tokens
from cse.storage import Folder

Kind = Literal["auto", "exact", "approximate"]

_EXACT_ROWS = 20_000  # up to here comparing every vector takes 20 ms; of 100,000, 100 ms and 700 MB


def build_table(vectors: VectorStore, kind: Kind = "auto") -> SearchTable:
    """Make the index of a folder, in place of any other; one shard is in memory at a time.

    Args:
        kind: ``exact`` compares every vector; ``approximate`` reads the nearest partitions of an IVF index, whose
            vectors are quantised by RaBitQ (Gao and Long 2024, arXiv 2405.12497), and computes the exact cosine of
            the best; ``auto`` does so above 20,000 rows.
    """
    if vectors.id_column is not None:
        _refuse_twice(vectors)
    if not vectors.rows:
        raise CseError(f"{vectors.folder.url}: no row says anything, so there is nothing to search")
    with _writing(vectors.folder) as database:
        if not refuse_foreign(vectors.folder) and TABLE_FOLDER in vectors.folder.names():
            vectors.folder.remove(TABLE_FOLDER)
        before = table_files(vectors.folder)
        from lancedb.index import FTS, BTree, IvfRq

        batches = _batches(vectors)
        first = next(batches)
        table = database.create_table(TABLE, _chained(first, batches), schema=first.schema, mode="overwrite")
        table.create_index("id", config=BTree())
        if vectors.text:
            exactly = FTS(
                base_tokenizer="whitespace", stem=False, remove_stop_words=False, lower_case=False, ascii_folding=False,
                max_token_length=None,
            )  # fmt: skip
            table.create_index(WORDS, config=exactly)
        if kind == "approximate" or (kind == "auto" and vectors.rows > _EXACT_ROWS):
            table.create_index(EMBEDDING, config=IvfRq(distance_type="dot"))
        _publish(table, vectors.folder, {}, before)
    return open_table(vectors.folder.url)


def update_table(url: str, changes: VectorStore) -> tuple[int, int, int]:
    """Replace the rows of an index whose ids a folder of vectors has, add the others, take away those without text now.

    Args:
        changes: vectors of the same model, with the same columns.

    Returns:
        How many rows were replaced, added and removed.
    """
    import pyarrow as pa

    there = open_table(url)
    if (there.model, there.role) != (changes.model, changes.role):
        raise CseError(f"{changes.folder.url}: made by another model, or in another role, than {url}; embed again")
    columns = [store.id_column and f"those of column {store.id_column!r}" for store in (changes, there)]
    if None in columns or columns[0] != columns[1]:
        ours, theirs = (column or "row numbers" for column in columns)
        raise CseError(
            f"{changes.folder.url}: its ids are {ours}, those of {url} {theirs}: they name other rows; embed both with "
            "the same --id-column"
        )
    batches = _batches(changes)
    first = next(batches, None)
    if first is not None and not first.schema.equals(there.table.schema):
        raise CseError(
            f"{changes.folder.url}: has columns {_shown(first.schema)}, {url} {_shown(there.table.schema)}; embed with "
            "the same options"
        )
    silent = left_out(changes)
    _refuse_twice(changes, silent)
    folder = Folder(url)
    with _writing(folder) as database:
        known = recorded(folder)
        others = table_files(folder)
        table = database.open_table(TABLE)
        replaced, added, before = 0, 0, len(there)
        if first is not None:
            merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            done = merge.execute(pa.RecordBatchReader.from_batches(first.schema, _chained(first, batches)))
            replaced, added, before = done.num_updated_rows, done.num_inserted_rows, table.count_rows()
        for start in range(0, len(silent), 1000):
            table.delete(f"id IN ({', '.join(map(_literal, silent[start : start + 1000]))})")
        removed = before - table.count_rows()
        _publish(table, folder, known, others)
    return replaced, added, removed


@contextmanager
def _writing(folder: Folder) -> Iterator[Any]:
    database = connect(folder)
    with only_writer(folder):
        try:
            yield database
        except (RuntimeError, ValueError) as error:
            if isinstance(error, CseError):
                raise
            if number := full_disk_in(str(error)):
                raise OSError(number, os.strerror(number), folder / TABLE_FOLDER) from None
            raise CseError(f"{folder / TABLE_FOLDER}: cannot be written: {one_line(str(error))[:300]}") from None


def verify_table(url: str) -> int:
    """Compare every byte of an index with what was written, and return how many files it has."""
    open_table(url)
    folder = Folder(url)
    with only_writer(folder):
        return check_files(folder, whole=True)


def _publish(table: Any, folder: Folder, known: Mapping[str, list[Any]], others: Collection[str]) -> None:
    """Bring the indices up to date, and let searches find this version; versions of the last week stay."""
    table.optimize()
    record(folder, known, others)
    tags = table.tags
    (tags.update if READY in tags.list() else tags.create)(READY, table.version)


def _batches(vectors: VectorStore) -> Iterator[Any]:
    """Yield the shards as record batches with vectors of unit length; the schema says what made them."""
    import pyarrow as pa
    from tqdm import tqdm

    facts: dict[str, Any] = {"format": FORMAT}
    facts |= {name: getattr(vectors, name) for name in ("bundle", "model", "role", "id_column", "queries")}
    shards = tqdm(shard_tables(vectors), total=len(vectors.plan.spans), desc="index", unit="shard",
                  disable=not sys.stderr.isatty())  # fmt: skip
    for table in shards:
        if vectors.text:
            words = [" ".join(tokens(text)) for text in table["text"].to_pylist()]
            table = table.append_column(WORDS, pa.array(words, pa.string()))
        yield from table.replace_schema_metadata({FACTS: json.dumps(facts)}).combine_chunks().to_batches()


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _literal(id_: int | str) -> str:
    return str(id_) if isinstance(id_, int) else "'" + id_.replace("'", "''") + "'"


def _shown(schema: Any) -> str:
    return listed(f"{field.name} ({field.type})" for field in schema)


def _refuse_twice(vectors: VectorStore, silent: Sequence[Any] = ()) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.concat_tables(shard_tables(vectors, ["id"]))["id"]
    counts = pc.value_counts(pa.chunked_array([*ids.chunks, pa.array(silent, ids.type)]))
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise CseError(
            f"{vectors.folder.url}: id {twice[0].as_py()!r} occurs twice; give each row its own (--id-column)"
        )
