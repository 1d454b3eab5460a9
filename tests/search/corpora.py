"""Corpora, and what a table holds of them, for the tests of `cse index`."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa

from cse.search.table import open_table

WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat"]  # of the tiny bundle


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(count)]


def rows_of(folder: Path | str) -> pa.Table:
    """The rows of a table as the last run left them, sorted by id and passage."""
    import lancedb

    rows = lancedb.connect(str(folder)).open_table("index").to_arrow()
    return rows.sort_by([("id", "ascending"), ("passage", "ascending")])


def is_approximate(folder: Path | str) -> bool:
    """Whether a search compares the nearest partitions alone."""
    return any(index.columns == ["embedding"] for index in open_table(str(folder)).table.list_indices())


def read_vectors(folder: Path | str) -> tuple[list, np.ndarray, list[str]]:
    """Ids, vectors (n, d) and texts of the rows of a table."""
    table = rows_of(folder)
    vectors = np.array(table["embedding"].to_pylist(), np.float32)
    return table["id"].to_pylist(), vectors, table["text"].to_pylist()


def answers(cse, folder: Path | str, *arguments: object) -> list[dict]:
    """What `cse search` finds for each query."""
    done = cse("search", folder, *arguments, "--json", "--device", "cpu")
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]
