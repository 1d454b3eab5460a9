"""The rows of a training in a bucket, and the copy of them that each machine reads, where machines share no disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from filelock import FileLock

from cse.errors import CseError
from cse.scale.storage import Folder, reading, sending

_WHOLE = "whole"  # a file that says that all is there


@dataclass(frozen=True)
class SharedRows:
    """Folders of rows of one run.

    Attributes:
        url: of the run's folder in a bucket, or on another file system that every machine reaches.
    """

    url: str
    name: str

    def put(self, folders: Mapping[str, Path]) -> None:
        """Copy folders there by name, unless they are there."""
        there = Folder(f"{self.url}/rows")
        if _WHOLE in there.names():
            return
        with sending(there.url):
            for name, folder in folders.items():
                there.fs.makedirs(f"{there.path}/{name}", exist_ok=True)
                there.fs.put(f"{folder}/", f"{there.path}/{name}/", recursive=True)
        there.write(_WHOLE, b"")

    @property
    def place(self) -> Path:
        """This machine's copy."""
        return Path(tempfile.gettempdir()) / f"cse-rows-{self.name}"

    def here(self) -> Path:
        """Return this machine's copy, made by the first process that asks while the others wait."""
        with FileLock(self._lock):
            if not self.place.is_dir():
                draft, there = self.place.with_suffix(".draft"), Folder(f"{self.url}/rows")
                shutil.rmtree(draft, ignore_errors=True)
                with reading(there.url):
                    there.fs.get(f"{there.path}/", f"{draft}/", recursive=True)
                draft.rename(self.place)
        return self.place

    def remove(self) -> None:
        """Delete the run's folder, and all that is in it; a bucket that refuses is told of, since the run has ended."""
        there = Folder(self.url)
        try:
            with sending(self.url):
                there.fs.rm(there.path, recursive=True)
        except CseError as error:
            click.echo(f"left behind, delete it yourself: {error}", err=True)

    def remove_here(self) -> None:
        """Delete this machine's copy; who has a file of it open keeps that."""
        shutil.rmtree(self.place, ignore_errors=True)
        self._lock.unlink(missing_ok=True)

    @property
    def _lock(self) -> Path:
        return self.place.with_suffix(".lock")
