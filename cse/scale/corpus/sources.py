"""The files of a corpus: one file, a folder or a glob, on any file system."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from cse.data.checks import listed
from cse.data.read import FORMATS, Format, ending, is_data_name
from cse.errors import CseError, nearest
from cse.storage import Folder, filesystem, is_local, reading, shown

_COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4", ".snappy"}
_VERSION_KEYS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus.

    Attributes:
        size: bytes.
        version: changes with the content: an entity tag or a modification time.
    """

    url: str
    name: str
    shown: str
    size: int | None
    version: str


@dataclass(frozen=True)
class Corpus:
    """Files of one format, in row order."""

    format: Format
    files: list[CorpusFile]


def find_corpus(corpus: str, skip: Folder | None = None) -> Corpus:
    """List the files of a corpus, sorted by name.

    A folder includes its subfolders, but not names that start with a dot or an underscore, README files and other
    formats.

    Args:
        skip: the output folder, whose files are not part of the corpus.
    """
    fs, path = filesystem(corpus)
    with reading(corpus):
        root, paths = _find(fs, path, corpus)
        if skip is not None and type(skip.fs) is type(fs):
            inside = skip.path.rstrip("/") + "/"
            if f"{path}/".startswith(inside):
                raise CseError(f"{corpus}: the corpus is inside the output folder; use another --out")
            paths = [one for one in paths if not one.startswith(inside)]
        kinds = {one: ending(one.partition("?")[0]) for one in paths}
        packed = next((one for one, kind in kinds.items() if kind in _COMPRESSED), None)
        if packed:
            raise CseError(f"{shown(fs, packed)}: compressed; unpack it first, or write it as parquet")
        chosen = {one: FORMATS[kind] for one, kind in kinds.items() if kind in FORMATS}
        if not chosen:
            found = f" (only {listed(sorted(PurePosixPath(one).name for one in paths))})" if paths else ""
            raise CseError(f"{corpus}: no {', '.join(FORMATS)} file here{found}; name a corpus in one of these formats")
        formats = sorted(set(chosen.values()))
        if len(formats) > 1:
            raise CseError(
                f"{corpus}: files of several formats ({', '.join(formats)}); select one with a glob such as *.jsonl"
            )
        return Corpus(formats[0], [_corpus_file(fs, root, one) for one in sorted(chosen)])


def _find(fs: Any, path: str, corpus: str) -> tuple[str, list[str]]:
    """Return the folder to which names are relative, and the paths of all files."""
    if fs.isfile(path):
        return path.rpartition("/")[0], [path]
    if fs.isdir(path):
        root = path.rstrip("/")
        return root, [one for one in fs.find(path) if _counts(one.removeprefix(root).strip("/"))]
    if any(character in path for character in "*?["):
        fixed = path[: min(path.find(character) for character in "*?[" if character in path)].rpartition("/")[0]
        matches = [one for one in fs.glob(path) if fs.isfile(one)]
        if not matches:
            raise CseError(f"{corpus}: no file matches")
        return fixed, matches
    raise CseError(f"{corpus}: no such file or folder{_near(fs, path)}")


def _counts(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return is_data_name(parts[-1]) and not any(part.startswith((".", "_")) for part in parts)


def _near(fs: Any, path: str) -> str:
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        beside: Iterable[str] = (one.rstrip("/").rpartition("/")[2] for one in fs.ls(parent, detail=False))
        return nearest(name, beside)
    except Exception:  # a hint is not worth an error
        return ""


def _corpus_file(fs: Any, root: str, path: str) -> CorpusFile:
    facts = cast(dict[str, Any], fs.info(path))
    version = next((facts[key] for key in _VERSION_KEYS if facts.get(key) is not None), "")
    name = path.removeprefix(root).lstrip("/")
    url = path if is_local(fs) else fs.unstrip_protocol(path)
    return CorpusFile(url, name, shown(fs, path), facts.get("size"), str(version))
