"""What an adaptation makes in its folder, and how that is deleted: it alone, and nothing if anything else is there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath

from cse.adapt.ladder import BARE, HEAD, HEADED
from cse.errors import CseError
from cse.outputs import MANIFEST, Kind, check_folder, read_manifest, remove_output

# kind of each output; None: a file
_RUN: dict[str, Kind | None] = {"train.json": None, "checkpoint": Kind.CHECKPOINT, "plots": Kind.PLOTS}
_SEEDED = [f"{system}-[0-9]*" for system in (*HEADED.values(), *HEADED) if system not in (BARE, HEAD)]
_MODELS = (BARE, HEAD, *_SEEDED)
_MADE: dict[str, Kind | None] = {
    "journal.json": None,
    "params.yaml": None,
    "prepare.json": None,
    "summary.txt": None,
    "prepared": Kind.PREPARED_DATA,
    "mined": Kind.MINED_ROWS,
    "corrupted": Kind.CORRUPTED_ROWS,
    "bundle": Kind.BUNDLE,
    "report": Kind.REPORT,
    **{f"records/{model}": Kind.RECORD for model in _MODELS},
    **{f"runs/{model}/{name}": kind for model in _MODELS for name, kind in _RUN.items()},
    **{f"trials/{model}/{name}": kind for model in _SEEDED for name, kind in _RUN.items()},
}
_DRAFT = re.compile(r"\.(.+)\.cse-(?:tmp|old)-\w+-\d+-\d+")  # see cse.outputs


def is_whole(path: Path) -> bool:
    """Return whether a file is there, or a published folder with all its files."""
    return path.is_file() or all((path / name).is_file() for name in {MANIFEST} | read_manifest(path)[1])


def remove(folder: Path) -> None:
    """Delete what an adaptation made in a folder.

    Raises:
        CseError: the folder holds something else; nothing was deleted.
    """
    for path, kind in list(_made(folder, folder)):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif kind is None:
            shutil.rmtree(path)
        else:
            remove_output(path)
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(parent).rmdir()


def _made(folder: Path, below: Path) -> Iterator[tuple[Path, Kind | None]]:
    """Yield each output below a folder with its kind, drafts of killed writers as None.

    Raises:
        CseError: something else is there.
    """
    for path in sorted(below.iterdir()):
        name = path.relative_to(folder)
        draft = _DRAFT.fullmatch(path.name)
        known = _fits(name.with_name(draft[1]) if draft is not None else name)
        whole = next((each for each in known if each.count("/") == len(name.parts) - 1), None)
        if draft is not None and whole is not None:
            yield path, None
        elif known and whole is None and draft is None and path.is_dir() and not path.is_symlink():
            yield from _made(folder, path)
        elif whole is not None and (_MADE[whole] is not None or path.is_file()):
            if (kind := _MADE[whole]) is not None:
                check_folder(path, kind)
            yield path, kind
        else:
            raise CseError(
                f"{folder}: holds {name}, which `cse adapt` did not put there; move it, or name another --out"
            )


def _fits(name: PurePath) -> list[str]:
    """Return the patterns of which a path is one, or the start of one."""
    depth = len(name.parts)
    parts = {known: known.split("/") for known in _MADE}
    return [known for known, of in parts.items() if len(of) >= depth and name.match("/".join(of[:depth]))]
