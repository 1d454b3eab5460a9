"""Folders and files on any file system that fsspec knows: a local path, ``s3://``, ``gs://``, ``http://``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from cse.errors import CseError


def filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path inside it."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(str(url))
    except (ValueError, ImportError) as error:
        raise CseError(f"{url}: cannot be opened: {error}") from None
    if is_local(fs) and ".." in Path(path).parts:  # fsspec finds nothing in `new/..` while there is no `new`
        path = os.path.realpath(path)
    return fs, path


def is_local(fs: Any) -> bool:
    """Return whether a file system is local."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


@contextmanager
def reading(shown: str) -> Iterator[None]:
    """Turn errors of a remote file system while reading ``shown`` into one line; local errors pass through."""
    try:
        yield
    except (CseError, OSError):
        raise
    except Exception as error:  # each remote file system has its own exceptions
        raise CseError(f"{shown}: cannot be read: {type(error).__name__}: {error}") from None


class Folder:
    """A folder, be it a bucket's; it need not exist."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        self.fs, self.path = filesystem(self.url)
        self.local = is_local(self.fs)

    def __truediv__(self, name: str) -> str:
        """Return the name of a file in it, for the user."""
        return f"{self.url.rstrip('/')}/{name}"

    def names(self) -> set[str]:
        """Return the names of its files; none if it does not exist."""
        self.fs.invalidate_cache()
        with reading(self.url):
            if self.fs.isdir(self.path):
                return {str(entry).rstrip("/").rpartition("/")[2] for entry in self.fs.ls(self.path, detail=False)}
            if self.fs.exists(self.path):
                raise CseError(f"{self.url}: a file; name a folder")
        return set()

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """Open a file to read parts of it."""
        with reading(self / name):
            file: BinaryIO = self.fs.open(f"{self.path}/{name}", "rb")
        return file

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        self.fs.rm(f"{self.path}/{name}", recursive=True)


def shown(fs: Any, path: str) -> str:
    """Return a path for the user: relative if below the working folder, a URL if remote."""
    if not is_local(fs):
        return str(fs.unstrip_protocol(path))
    here = os.getcwd().rstrip("/") + "/"  # noqa: PTH109 - compared as text, because fsspec paths are text
    return path.removeprefix(here)
