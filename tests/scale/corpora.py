"""Corpora and runs of `cse embed` for the tests of its parts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cse.scale.corpus.columns import Columns
from cse.scale.corpus.pieces import read_pieces
from cse.scale.corpus.plan import Choices, CorpusPlan, make_plan
from cse.scale.corpus.sources import find_corpus

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


def choices(**changes) -> Choices:
    columns = Columns(
        changes.pop("text_column", "text"), changes.pop("id_column", None), encoding=changes.pop("encoding", "utf-8")
    )
    usual = {"keep_text": True, "shard_rows": 10, "batch_size": 64, "normalize": True, "provider": "cpu"}
    return Choices(columns, **(usual | changes))


def cut(corpus: Path | str, **changes) -> tuple[CorpusPlan, list[tuple[list, list[str]]]]:
    """CorpusPlan a corpus and read every piece of it: ids and texts."""
    chosen = choices(**changes)
    found = find_corpus(str(corpus))
    plan = make_plan(found, chosen, {})
    pieces = read_pieces(plan.pieces(), found.files, found.format, chosen.columns, plan.id_type)
    return plan, [(rows.ids, rows.texts) for _, rows in pieces]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def read_vectors(folder: Path) -> tuple[list, np.ndarray, list[str]]:
    """Ids, vectors (n, d) and texts of a folder that holds texts."""
    table = pa.concat_tables([pq.read_table(shard) for shard in shards(folder)])
    vectors = np.array(table["embedding"].to_pylist(), np.float32)
    return table["id"].to_pylist(), vectors, table["text"].to_pylist()


def outputs(folder: Path) -> dict[str, bytes]:
    """Every file that a run leaves, by name."""
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file() and path.name != ".cse-lock"
    }
