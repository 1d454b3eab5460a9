"""Write small files in the formats that every part uses, and fingerprint them."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cse.artifact import read_object, sha256
from cse.errors import CseError, full_disk_in

if TYPE_CHECKING:
    import numpy as np


def write_json(path: Path, tree: Any) -> None:
    """Write JSON that people may read."""
    path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def write_rounded_json(path: Path, tree: Any) -> None:
    """Write JSON with the numbers of ``rounded``."""
    write_json(path, rounded(tree))


def rounded(tree: Any) -> Any:
    """Return JSON values rounded to four decimals, small ones (learning rates, L2 values) to four digits."""

    def rounded_number(digits: str) -> float:
        number = float(digits)
        return round(number, 4) if abs(number) >= 0.1 else float(f"{number:.4g}")

    return json.loads(json.dumps(tree), parse_float=rounded_number)


def begins_with(start: bytes) -> Callable[[Path], bool]:
    """Return a test for a file that begins with these bytes."""

    def test(path: Path) -> bool:
        with path.open("rb") as stream:
            return stream.read(len(start)) == start

    return test


def is_json_with(*keys: str) -> Callable[[Path], bool]:
    """Return a test for a JSON object with ``keys``; without keys, for one whose values are all objects."""

    def test(path: Path) -> bool:
        try:
            tree = read_object(path, "")
        except CseError:
            return False
        return all(key in tree for key in keys) if keys else all(isinstance(value, dict) for value in tree.values())

    return test


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table with a header line."""
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
    """Write an array as ``.npy``; ``numpy.save`` would hide the reason for a failure."""
    from numpy.lib import format as npy

    whole = array if array.flags.c_contiguous else array.copy()
    with path.open("wb") as stream:
        npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(whole))
        stream.write(whole.data)


def fingerprint(facts: Mapping[str, Any], files: Iterable[Path] = ()) -> str:
    """Return a hash of JSON facts and file contents (settings, data, code), 16 hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in files:
        digest.update(bytes.fromhex(sha256(path)))
    return digest.hexdigest()[:16]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add ``path`` to an OSError that names no file: a failed write does not say where.

    Raises:
        OSError: also for a full disk that safetensors or tokenizers report as an error of their own.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    except Exception as error:
        number = None if isinstance(error, CseError) else full_disk_in(str(error))
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from None
