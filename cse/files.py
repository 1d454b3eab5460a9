"""Outputs that are either finished or not there: written beside their place and moved in by rename.

A temporary sibling is named ``.NAME.tmp-PID-N``, the old output on its way out ``.NAME.old-PID-N``. What a killed
process left of either is put right by the next writer of the same output.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_numbers = itertools.count()
_active: set[str] = set()


@contextmanager
def publish_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``out`` when the block ends without an error.

    Where the block raises, the temporary folder is removed and ``out`` stays as it was.

    Raises:
        OSError: the folder cannot be written or moved; ``out`` is as it was.
    """
    with _sibling(out) as (new, old):
        new.mkdir()
        yield new
        for path in sorted(new.rglob("*")):
            _to_disk(path)
        had_old = os.path.lexists(out)
        if had_old:
            out.rename(old)
        try:
            new.rename(out)
        except BaseException:
            if had_old:
                old.rename(out)
            raise


@contextmanager
def publish_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write, which takes the place of ``path`` when the block ends without an error.

    Raises:
        OSError: the file cannot be written or moved; ``path`` is as it was.
    """
    with _sibling(path) as (new, _):
        yield new
        _to_disk(new)
        new.replace(path)


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


def fingerprint(facts: Mapping[str, Any], files: Iterable[Path] = ()) -> str:
    """Return 16 hexadecimal digits over JSON facts and the bytes of files (settings, data, code)."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in files:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
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


@contextmanager
def _sibling(out: Path) -> Iterator[tuple[Path, Path]]:
    """Yield names for the new and the old output beside ``out``; whatever is left of them is removed at the end."""
    out.parent.mkdir(parents=True, exist_ok=True)
    tidy(out)
    mark = f"{os.getpid()}-{next(_numbers)}"
    new = out.with_name(f".{out.name}.tmp-{mark}")
    old = out.with_name(f".{out.name}.old-{mark}")
    _active.add(mark)
    try:
        with naming(out):
            yield new, old
    finally:
        _remove(new)
        if os.path.lexists(out):
            _remove(old)
        _active.discard(mark)


def tidy(out: Path) -> None:
    """Remove what killed writers of ``out`` left beside it; put an old output back that lost its place."""
    for kind in ("old", "tmp"):
        prefix = f".{out.name}.{kind}-"
        for path in sorted(out.parent.iterdir()):
            if not path.name.startswith(prefix) or _is_alive(path.name.removeprefix(prefix)):
                continue
            if kind == "old" and not os.path.lexists(out):
                path.rename(out)
            else:
                _remove(path)


def _is_alive(mark: str) -> bool:
    """Tell whether the process of a mark ``PID-N`` still works on it; anything else is not ours to judge."""
    pid, _, number = mark.partition("-")
    if not (pid.isdecimal() and number.isdecimal()):
        return True
    if int(pid) == os.getpid():
        return mark in _active
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: str) -> bool:
    """Tell whether a process is dead and only waits to be reaped, which a container without init may never do."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "Z"


def _to_disk(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
