"""Corpora, and what a table holds of them, for the tests of `cse index`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat"]  # of the tiny bundle


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(count)]


def write_txt(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    return write_txt(path, [json.dumps(row) for row in rows])


def write_parquet(path: Path, columns: dict, rows_per_group: int = 1 << 20) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def rows_of(folder: Path | str) -> pa.Table:
    """The rows of a table as the last run left them, sorted by id and passage."""
    import lancedb

    return (
        lancedb.connect(str(folder))
        .open_table("index")
        .to_arrow()
        .sort_by([("id", "ascending"), ("passage", "ascending")])
    )


def read_vectors(folder: Path | str) -> tuple[list, np.ndarray, list[str]]:
    """Ids, vectors (n, d) and texts of the rows of a table."""
    table = rows_of(folder)
    vectors = np.array(table["embedding"].to_pylist(), np.float32)
    return table["id"].to_pylist(), vectors, table["text"].to_pylist()
