"""Outputs that are either finished or not there, and that replace nothing but what this project wrote.

A published folder holds ``.cse.json``: what kind of output it is, and the files that were written. A folder is replaced
only where that manifest names the same kind and every file that is there. Whatever else lies at the place is refused,
and nothing is removed but files that a manifest lists.

A draft beside its place is named ``.NAME.cse-tmp-HOST-PID-N``, an old output on its way out
``.NAME.cse-old-HOST-PID-N``. What a killed process left of either is put right by the next writer of the same
output on that host.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from cse.errors import CseError
from cse.files import naming

MANIFEST = ".cse.json"
_NPY = b"\x93NUMPY"
_REPOSITORY = (".git", ".dvc", ".hg", ".svn")
_SHOWN = 3  # names in a message


class Kind(StrEnum):
    """What a published folder is, in words."""

    PREPARED_DATA = "prepared data"
    CORRUPTED_ROWS = "corrupted rows"
    TOKENS = "tokenised rows"
    CHECKPOINT = "checkpoint"
    PLOTS = "plots"
    RECORD = "record"
    RECORDS = "records"
    BUNDLE = "bundle"
    REPORT = "report"
    ABLATION = "ablation"


_numbers = itertools.count()
_active: set[str] = set()
_host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "_"


def check_folder(out: Path, kind: Kind) -> Path:
    """Refuse a place that a new output may not take; call it before work starts.

    Args:
        out: where a folder is to be published. A link to a folder stands for that folder.
        kind: what it will be.

    Returns:
        The folder itself, links resolved.

    Raises:
        CseError: ``out`` is no folder, a working folder, home, mount point or repository, or holds one of those as far
            as can be seen; or it holds anything but an output of the same kind.
        OSError: it cannot be read.
    """
    elsewhere = "give another folder"
    if os.path.lexists(out) and not out.is_dir():
        raise CseError(f"{out}: is there and is no folder; {elsewhere}")
    place = out.resolve()
    taken_places = [("the working folder", Path.cwd())]
    with contextlib.suppress(RuntimeError):  # this user has no home
        taken_places.append(("your home folder", Path.home().resolve()))
    for what, taken in taken_places:
        if place == taken or place in taken.parents:
            raise CseError(f"{out}: is {what} or holds it; {elsewhere}")
    if not place.is_dir():
        return place
    if place.is_mount():
        raise CseError(f"{out}: is a mount point; {elsewhere}, in it for instance")
    if any((place / name).exists() for name in _REPOSITORY):
        raise CseError(f"{out}: is the root of a repository; {elsewhere}, in it for instance")
    there = _files_in(place)
    if not there:
        return place
    found, files = _read_manifest(place)
    if found is None:
        raise CseError(
            f"{out}: holds files that cse did not put there ({_listed(there)}); {elsewhere}, or move them away"
        )
    if found != kind:
        raise CseError(f"{out}: holds another kind of output ({found}, not {kind}); {elsewhere}, or remove it")
    foreign = there - files
    if foreign:
        raise CseError(
            f"{out}: holds files that cse did not put there ({_listed(foreign)}); move them away, or {elsewhere}"
        )
    return place


def check_file(path: Path, made_here: Callable[[Path], bool]) -> None:
    """Refuse a file that a new output may not replace; call it before work starts.

    Args:
        path: where a file is to be published.
        made_here: tells a file that this project wrote as the same output, see ``is_npy`` and ``is_json_with``.

    Raises:
        CseError: something else is there.
        OSError: it cannot be read.
    """
    _regular(path)
    if path.exists() and path.stat().st_size > 0 and not made_here(path):
        raise CseError(f"{path}: is there and is no earlier output of this command; give another name, or remove it")


def is_npy(path: Path) -> bool:
    """Return whether a file is an array as numpy writes it."""
    with path.open("rb") as stream:
        return stream.read(len(_NPY)) == _NPY


def is_json_with(*keys: str) -> Callable[[Path], bool]:
    """Return a test for a JSON object that has ``keys``; without any, for one whose values are objects all."""

    def test(path: Path) -> bool:
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            return False
        if not isinstance(tree, dict):
            return False
        return all(key in tree for key in keys) if keys else all(isinstance(value, dict) for value in tree.values())

    return test


@contextmanager
def publish_folder(out: Path, kind: Kind) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``out`` when the block ends without an error.

    Where the block raises, the draft is removed and ``out`` stays as it was.

    Args:
        out: where the folder goes.
        kind: what it is.

    Raises:
        CseError: ``check_folder`` refuses the place.
        OSError: the folder cannot be written or moved; ``out`` is as it was.
    """
    with _beside(check_folder(out, kind), out) as (place, new, old):
        new.mkdir()
        yield new
        facts = {"kind": kind, "files": sorted({*_files_in(new), MANIFEST})}
        (new / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        for path in sorted(new.rglob("*")):
            _to_disk(path)
        check_folder(out, kind)  # hours may have passed
        had_old = place.is_dir()
        if had_old:
            place.rename(old)
        try:
            new.rename(place)
        except BaseException:
            if had_old:
                old.rename(place)
            raise


@contextmanager
def publish_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write, which takes the place of ``path`` when the block ends without an error.

    Whether it may is the caller's question, see ``check_file``; a device, a pipe or a folder is never replaced.

    Raises:
        CseError: ``path`` is there and is no regular file.
        OSError: the file cannot be written or moved; ``path`` is as it was.
    """
    _regular(path)
    with _beside(path.resolve(), path) as (place, new, _):
        yield new
        _to_disk(new)
        new.replace(place)


@contextmanager
def _beside(place: Path, shown: Path) -> Iterator[tuple[Path, Path, Path]]:
    """Yield a place, and names beside it for a draft and for the old output; what is left of them is removed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _tidy(place)
    mark = f"{_host}-{os.getpid()}-{next(_numbers)}"
    new = place.with_name(f".{place.name}.cse-tmp-{mark}")
    old = place.with_name(f".{place.name}.cse-old-{mark}")
    _active.add(mark)
    try:
        with naming(shown):
            yield place, new, old
    finally:
        _remove_draft(new)
        if os.path.lexists(place):
            _remove_output(old)
        _active.discard(mark)


def _tidy(place: Path) -> None:
    """Remove what killed writers of an output left beside it; put an old output back that lost its place."""
    pattern = re.compile(rf"\.{re.escape(place.name)}\.cse-(old|tmp)-{_host}-(\d+)-\d+")
    for path in sorted(place.parent.iterdir()):
        found = pattern.fullmatch(path.name)
        if found is None or _at_work(path.name.partition(f"{found[1]}-")[2], int(found[2])):
            continue
        if found[1] == "tmp":
            _remove_draft(path)
        elif os.path.lexists(place):
            _remove_output(path)
        else:
            path.rename(place)


def _at_work(mark: str, pid: int) -> bool:
    """Return whether the process of a mark still works on it; one that waits to be reaped does not."""
    if pid == os.getpid():
        return mark in _active
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _regular(path: Path) -> None:
    if os.path.lexists(path) and not path.is_file():
        raise CseError(f"{path}: is there and is no regular file; give another name")


def _files_in(folder: Path) -> set[str]:
    """Return everything but folders below a folder, by path from there; links are not followed."""
    found = set()
    for parent, folders, files in os.walk(folder, onerror=_raise):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        found |= {Path(parent, name).relative_to(folder).as_posix() for name in (*files, *links)}
    return found


def _raise(error: OSError) -> None:
    raise error


def _read_manifest(folder: Path) -> tuple[str | None, set[str]]:
    """Return the kind of a published folder and the files that were written to it; no kind where it is none of ours."""
    try:
        facts: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return str(facts["kind"]), {str(name) for name in facts["files"]}
    except (FileNotFoundError, IsADirectoryError, ValueError, KeyError, TypeError, RecursionError):
        return None, set()


def _listed(names: set[str]) -> str:
    shown = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in sorted(names)[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _remove_draft(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_output(folder: Path) -> None:
    """Remove the files of a published folder that its manifest lists, and the folders that are then empty."""
    if not folder.is_dir():
        return
    _, files = _read_manifest(folder)
    for name in files & _files_in(folder):
        if name != MANIFEST:
            (folder / name).unlink(missing_ok=True)
    if _files_in(folder) <= {MANIFEST}:  # last: it says what may be removed
        (folder / MANIFEST).unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(parent).rmdir()


def _to_disk(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            os.fsync(file.fileno())
