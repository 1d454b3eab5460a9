"""Small files in the forms that every part writes, and what tells files apart."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cse.runtime.seal import sha256

if TYPE_CHECKING:
    import numpy as np


def write_rounded_json(path: Path, tree: Any) -> None:
    """Write JSON with numbers to four decimals, and small ones (learning rates, L2 values) to four digits."""

    def rounded_number(digits: str) -> float:
        number = float(digits)
        return round(number, 4) if abs(number) >= 0.1 else float(f"{number:.4g}")

    rounded = json.loads(json.dumps(tree), parse_float=rounded_number)
    path.write_text(json.dumps(rounded, indent=2) + "\n", encoding="utf-8")


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table with a line for the names of its columns."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table by column; none where there is no such file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an array as ``.npy``; ``numpy.save`` would hide why a write failed."""
    from numpy.lib import format as npy

    whole = array if array.flags.c_contiguous else array.copy()
    with path.open("wb") as stream:
        npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(whole))
        stream.write(whole.data)


def fingerprint(facts: Mapping[str, Any], files: Iterable[Path] = ()) -> str:
    """Return 16 hexadecimal digits over JSON facts and the bytes of files (settings, data, code)."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in files:
        digest.update(bytes.fromhex(sha256(path)))
    return digest.hexdigest()[:16]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name ``path`` in an error of the operating system that names no file: a failed write does not say where."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
