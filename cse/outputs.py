"""Atomic outputs, which replace only what this project wrote.

A published folder holds ``.cse.json``: the kind of output and the files written. A folder is replaced only if that
manifest names the same kind and lists every file in it. Anything else is refused, and only files listed in a manifest
are ever removed.

A draft next to its target is named ``.NAME.cse-tmp-HOST-PID-N``, an old output being replaced
``.NAME.cse-old-HOST-PID-N``. The next writer of the same output on that host cleans up what a killed process left.
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
_REPOSITORY = (".git", ".dvc", ".hg", ".svn")
_SHOWN = 3  # file names in a message
_ELSEWHERE = "choose another folder"
_DRAFT = re.compile(r"\..+\.cse-(old|tmp)-\w+-\d+-\d+")


class Kind(StrEnum):
    """The kind of a published folder."""

    PREPARED_DATA = "prepared data"
    MINED_ROWS = "mined rows"
    CORRUPTED_ROWS = "corrupted rows"
    CHECKPOINT = "checkpoint"
    PLOTS = "plots"
    RECORD = "record"
    RECORDS = "records"
    BUNDLE = "bundle"
    BANK = "bank"
    REPORT = "report"
    SENTENCE_TRANSFORMERS = "sentence-transformers model"
    PEFT = "peft adapter"
    JUDGED = "judged queries"


_numbers = itertools.count()
_active: set[str] = set()
_host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "_"


def check_folder(out: Path, kind: Kind) -> Path:
    """Refuse a path that a new output may not take; call it before work starts.

    Args:
        out: folder to publish. A link to a folder stands for that folder.

    Returns:
        The folder, with links resolved.

    Raises:
        OSError: it cannot be read.
    """
    place = check_place(out)
    there = _files_in(place) if place.is_dir() else set()
    if not there:
        return place
    found, files = read_manifest(place)
    if found is None:
        raise CseError(f"{out}: holds files that cse did not put there ({_listed(there)}); {_ELSEWHERE}, or move them")
    if found != kind:
        raise CseError(f"{out}: holds another kind of output ({found}, not {kind}); {_ELSEWHERE}, or delete it")
    foreign = there - files
    if foreign:
        raise CseError(
            f"{out}: holds files that cse did not put there ({_listed(foreign)}); move them, or {_ELSEWHERE}"
        )
    return place


def check_holder(out: Path, kind: Kind) -> None:
    """Refuse a folder for outputs side by side that holds anything else; call it before work starts.

    Raises:
        OSError: it cannot be read.
    """
    place = check_place(out)
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if not _DRAFT.fullmatch(path.name) and read_manifest(path)[0] != kind:
            raise CseError(f"{out}: holds {_listed({path.name})}, which is no {kind} of cse; {_ELSEWHERE}, or move it")


def check_place(out: Path) -> Path:
    """Refuse a place that no output may ever take, and return it with links resolved.

    Raises:
        OSError: it cannot be read.
    """
    if os.path.lexists(out) and not out.is_dir():
        raise CseError(f"{out}: exists and is not a folder; {_ELSEWHERE}")
    place = out.resolve()
    taken_places = [("the working folder", Path.cwd())]
    with contextlib.suppress(RuntimeError):  # the user has no home
        taken_places.append(("your home folder", Path.home().resolve()))
    for what, taken in taken_places:
        if place == taken or place in taken.parents:
            raise CseError(f"{out}: is or contains {what}; {_ELSEWHERE}")
    if place.is_mount():
        raise CseError(f"{out}: is a mount point; {_ELSEWHERE}, for instance a subfolder")
    if any((place / name).exists() for name in _REPOSITORY):
        raise CseError(f"{out}: is the root of a repository; {_ELSEWHERE}, for instance a subfolder")
    return place


def check_file(path: Path, made_here: Callable[[Path], bool]) -> None:
    """Refuse a file that a new output may not replace; call it before work starts.

    Args:
        made_here: returns whether this project wrote the file as the same output, see ``begins_with`` and
            ``is_json_with``.

    Raises:
        OSError: it cannot be read.
    """
    _regular(path)
    if path.exists() and path.stat().st_size > 0 and not made_here(path):
        raise CseError(f"{path}: exists and is not an earlier output of this command; choose another name or delete it")


@contextmanager
def publish_folder(out: Path, kind: Kind) -> Iterator[Path]:
    """Yield an empty folder that replaces ``out`` when the block ends without an error.

    If the block raises, the draft is removed and ``out`` stays untouched.

    Raises:
        OSError: the folder cannot be written or moved; ``out`` stays untouched.
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
    """Yield the name of a file to write, which replaces ``path`` when the block ends without an error.

    The caller checks whether it may, see ``check_file``; a device, a pipe or a folder is never replaced.

    Raises:
        OSError: the file cannot be written or moved; ``path`` stays untouched.
    """
    _regular(path)
    with _beside(path.resolve(), path) as (place, new, _):
        yield new
        _to_disk(new)
        new.replace(place)


@contextmanager
def _beside(place: Path, shown: Path) -> Iterator[tuple[Path, Path, Path]]:
    """Yield a target and names next to it for a draft and the old output; clean up both afterwards."""
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
            remove_output(old)
        _active.discard(mark)


def _tidy(place: Path) -> None:
    """Remove what killed writers left next to an output; restore an old output that was moved away."""
    pattern = re.compile(rf"\.{re.escape(place.name)}\.cse-(old|tmp)-{_host}-(\d+)-\d+")
    for name in sorted(os.listdir(place.parent)):  # noqa: PTH208 - a bank's folder may hold thousands
        found = pattern.fullmatch(name)
        if found is None or _at_work(name.partition(f"{found[1]}-")[2], int(found[2])):
            continue
        path = place.with_name(name)
        if found[1] == "tmp":
            _remove_draft(path)
        elif os.path.lexists(place):
            remove_output(path)
        else:
            path.rename(place)


def _at_work(mark: str, pid: int) -> bool:
    """Return whether the process of a mark is still alive; a zombie is not."""
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
        raise CseError(f"{path}: exists and is not a regular file; choose another name")


def _files_in(folder: Path) -> set[str]:
    """Return the relative paths of everything in a folder but its folders; do not follow links."""
    found = set()
    for parent, folders, files in os.walk(folder, onerror=_raise):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        found |= {Path(parent, name).relative_to(folder).as_posix() for name in (*files, *links)}
    return found


def _raise(error: OSError) -> None:
    raise error


def read_manifest(folder: Path) -> tuple[str | None, set[str]]:
    """Return the kind of a published folder and its listed files; no kind if it is not ours."""
    try:
        facts: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return str(facts["kind"]), {str(name) for name in facts["files"]}
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, KeyError, TypeError, RecursionError):
        return None, set()


def _listed(names: set[str]) -> str:
    shown = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in sorted(names)[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _remove_draft(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_output(folder: Path) -> None:
    """Remove the files that a published folder's manifest lists, and folders left empty."""
    if not folder.is_dir():
        return
    _, files = read_manifest(folder)
    for name in files & _files_in(folder):
        if name != MANIFEST:
            (folder / name).unlink(missing_ok=True)
    if _files_in(folder) <= {MANIFEST}:  # last, because it lists what may be removed
        (folder / MANIFEST).unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(parent).rmdir()


def _to_disk(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            os.fsync(file.fileno())
