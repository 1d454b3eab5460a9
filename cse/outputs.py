"""Outputs are whole or absent, and replace only what this project wrote.

A folder is replaced only if its manifest (``cse.artifact``) is of the same kind and lists all that is in it. Anything
else is refused, and only listed files are ever removed.

A draft next to its target is named ``.NAME.cse-tmp-HOST-PID-N``, an old output being replaced
``.NAME.cse-old-HOST-PID-N``. The next writer of the same output on that host cleans up what a killed process left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil

from cse.artifact import Kind, files_in, listed, read_object, sha256, write_sealed
from cse.errors import DRAFT, CseError
from cse.files import naming

__all__ = [
    *("Kind", "check_file", "check_folder", "check_holder", "check_place"),
    *("publish_file", "publish_folder", "remove_output"),
]

_REPOSITORY = (".git", ".dvc", ".hg", ".svn")
_SHOWN = 3  # file names in a message
_ELSEWHERE = "choose another folder"
_numbers = itertools.count()
_active: set[str] = set()
_host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "_"


def check_folder(out: Path, kind: Kind) -> Path:
    """Refuse a path that a new output may not take, and return it with links resolved; call it before work starts."""
    place = check_place(out)
    there = files_in(place)
    if not there:
        return place
    found, files = listed(place)
    if found not in (None, kind):
        raise CseError(f"{out}: holds another kind of output ({found}, not {kind}); {_ELSEWHERE}, or delete it")
    if foreign := there - files:
        raise CseError(f"{out}: holds files that cse did not put there ({_shown(foreign)}); {_ELSEWHERE}, or move them")
    return place


def check_holder(out: Path, kind: Kind) -> None:
    """Refuse a folder for outputs side by side that holds anything else; call it before work starts."""
    place = check_place(out)
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if not DRAFT.fullmatch(path.name) and listed(path)[0] != kind:
            raise CseError(f"{out}: holds {_shown({path.name})}, which is no {kind} of cse; {_ELSEWHERE}, or move it")


def check_place(out: Path) -> Path:
    """Refuse a place that no output may ever take, and return it with links resolved."""
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
        made_here: whether this project wrote the file as the same output, see ``begins_with`` and ``is_json_with``.
    """
    _regular(path)
    if path.exists() and path.stat().st_size > 0 and not made_here(path):
        raise CseError(f"{path}: exists and is not an earlier output of this command; choose another name or delete it")


def _regular(path: Path) -> None:
    if os.path.lexists(path) and not path.is_file():
        raise CseError(f"{path}: exists and is not a regular file; choose another name")


def _shown(names: set[str]) -> str:
    shown = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in sorted(names)[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


@contextmanager
def publish_folder(out: Path, kind: Kind, *, changing: Collection[str] = ()) -> Iterator[Path]:
    """Yield an empty folder that replaces ``out`` when the block ends without an error; else ``out`` stays untouched.

    The block may write the manifest; what it does not list is added to it.

    Args:
        changing: patterns of names of files that may change later, so that no hash of them is kept.
    """
    with _beside(check_folder(out, kind), out) as (place, new, old):
        new.mkdir()
        yield new
        _complete(new, kind, changing)
        for path in sorted(new.rglob("*")):
            _to_disk(path)
        check_folder(out, kind)  # hours may have passed
        if place.is_dir():
            place.rename(old)
        new.rename(place)


def _complete(folder: Path, kind: Kind, changing: Collection[str]) -> None:
    """Add to a draft's manifest what it does not list."""
    path = folder / kind.manifest
    if path.is_file() and listed(folder)[0] != kind:
        raise CseError(f"{path}: not of a {kind} that this version of cse reads; make it again")
    facts: dict[str, Any] = read_object(path, "make it again") if path.is_file() else {"kind": kind}
    known: dict[str, str] = facts.get("files", {})
    new = sorted(files_in(folder) - known.keys() - {path.name})
    files = {name: "" if any(fnmatch(name, one) for one in changing) else sha256(folder / name) for name in new}
    if files or not path.is_file():
        write_sealed(path, facts | {"files": known | files})


@contextmanager
def publish_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write, which replaces ``path`` when the block ends without an error.

    The caller checks whether it may, see ``check_file``; a device, a pipe or a folder is never replaced.
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
    for name in os.listdir(place.parent):  # noqa: PTH208 - a bank's folder may hold thousands
        left = DRAFT.fullmatch(name)
        if left is None or (left["of"], left["host"]) != (place.name, _host):
            continue
        if not _at_work(left["mark"], int(left["pid"])):  # of a killed writer
            _settle(place, left["mark"])
    mark = f"{_host}-{os.getpid()}-{next(_numbers)}"
    _active.add(mark)
    try:
        with naming(shown):
            yield place, *_drafts(place, mark)
    finally:
        _settle(place, mark)
        _active.discard(mark)


def _drafts(place: Path, mark: str) -> tuple[Path, Path]:
    """Return the names that a writer gives to the draft of an output and to the old one."""
    return place.with_name(f".{place.name}.cse-tmp-{mark}"), place.with_name(f".{place.name}.cse-old-{mark}")


def _settle(place: Path, mark: str) -> None:
    """Remove what a writer left next to an output; an old output that nothing has replaced comes back."""
    new, old = _drafts(place, mark)
    if new.is_dir() and not new.is_symlink():
        shutil.rmtree(new, ignore_errors=True)
    else:
        new.unlink(missing_ok=True)
    if os.path.lexists(place):
        remove_output(old)
    elif old.is_dir():
        old.rename(place)


def _at_work(mark: str, pid: int) -> bool:
    """Return whether the process of a mark is still alive; a zombie is not."""
    if pid == os.getpid():
        return mark in _active
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error as error:
        return not isinstance(error, psutil.NoSuchProcess)


def remove_output(folder: Path) -> None:
    """Remove the files that a published folder's manifest lists, and folders left empty."""
    kind, files = listed(folder)
    manifest = kind.manifest if kind else ""
    for name in files & files_in(folder) - {manifest}:
        (folder / name).unlink(missing_ok=True)
    if kind and files_in(folder) == {manifest}:  # last, because it lists what may be removed
        (folder / manifest).unlink()
    for parent, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(parent).rmdir()


def _to_disk(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            os.fsync(file.fileno())
