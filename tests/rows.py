"""Files of rows as users have them: lines of text, objects of JSON, tables."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write a line of each text, in a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_objects(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write JSON Lines."""
    return write_lines(path, map(json.dumps, rows))


def write_table(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]], in_group: int = 1 << 20) -> Path:
    """Write a csv, jsonl or parquet table, as the ending says; parquet in groups of so many rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        return write_objects(path, (dict(zip(names, row, strict=True)) for row in rows))
    if path.suffix == ".parquet":
        return write_parquet(path, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), in_group)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([names, *rows])
    return path


def write_parquet(path: Path, columns: Mapping[str, object], in_group: int = 1 << 20) -> Path:
    """Write columns by their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=in_group)
    return path
