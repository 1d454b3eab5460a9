"""The LanceDB database that a folder of vectors is: its one table, and whose that is."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from typing import Any

from cse.errors import CseError
from cse.storage import Folder

TABLE = "index"
TABLE_FOLDER = f"{TABLE}.lance"
FACTS = b"cse"  # key of the table's metadata
FORMAT = 4  # of the table
WORDS = "_words"  # column of a text's words, as `cse.search.words` knows them, between blanks
_RECORD = "sha256.json"  # in the table's folder: size and SHA-256 of its files, which never change under their names
_CHANGING = ("_refs/", "_versions/latest_version_hint.json", _RECORD)
_AT_OPENING = 16 << 20  # bytes that are read to check the small files
_BUCKETS = ("s3", "gs", "az")


def connect(folder: Folder) -> Any:
    """Open a folder as a LanceDB database."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # its warnings speak to programmers
    try:
        import lancedb
    except ImportError:
        raise CseError("the index needs LanceDB: pip install 'cse[search]'") from None
    if folder.local:
        return lancedb.connect(folder.path)
    if folder.url.partition("://")[0] not in _BUCKETS:
        raise CseError(f"{folder.url}: an index lies on a disk or in a bucket ({'://, '.join(_BUCKETS)}://)")
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:")
    return lancedb.connect(folder.url, storage_options={"allow_http": "true"} if plain else None)


def refuse_foreign(folder: Folder) -> bool:
    """Refuse a table that `cse index` did not make, and return whether there is one that can be written over.

    One that cannot be opened was never finished, or is damaged.
    """
    if TABLE_FOLDER not in folder.names():
        return False
    database = connect(folder)
    try:
        metadata = database.open_table(TABLE).schema.metadata
    except (ValueError, RuntimeError, OSError):
        return False
    if FACTS not in (metadata or {}):
        raise CseError(f"{folder / TABLE_FOLDER}: a table that `cse index` did not make; move it, and index again")
    return True


def table_files(folder: Folder) -> dict[str, int]:
    """Return the sizes of the table's files that never change, by name."""
    folder.fs.invalidate_cache()
    root = f"{folder.path}/{TABLE_FOLDER}/"
    found = folder.fs.find(root, detail=True)
    sizes = {
        path[path.index(TABLE_FOLDER + "/") + len(TABLE_FOLDER) + 1 :]: info["size"] for path, info in found.items()
    }
    return {name: size for name, size in sizes.items() if not name.startswith(_CHANGING)}


def recorded(folder: Folder) -> dict[str, list[Any]]:
    """Return size and SHA-256 of the files of a finished table, by name; none if there is no record."""
    try:
        found = json.loads(folder.read(f"{TABLE_FOLDER}/{_RECORD}"))
        return {str(name): [int(size), str(digest)] for name, (size, digest) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def record(folder: Folder, known: Mapping[str, list[Any]], others: Collection[str]) -> None:
    """Record the files of a table: those that are known, and all that are not among others."""
    files = {
        name: known.get(name) or [size, _digest(folder, name)]
        for name, size in table_files(folder).items()
        if name in known or name not in others
    }
    folder.fs.pipe_file(f"{folder.path}/{TABLE_FOLDER}/{_RECORD}", json.dumps(files).encode())


def check_files(folder: Folder, *, whole: bool = False) -> int:
    """Compare the files of a table with their record, and return how many there are.

    At opening, their sizes, and on a disk the content of the small ones; ``whole``, all.
    """
    again = f"build the index again: cse index {folder.url}"
    known, there, left = recorded(folder), table_files(folder), _AT_OPENING if folder.local else 0
    if not known:
        raise CseError(f"{folder.url}: the index is not finished or damaged; {again}")
    for name, (size, digest) in sorted(known.items(), key=lambda each: each[1][0]):
        left -= size
        if there.get(name) != size or ((whole or left >= 0) and _digest(folder, name) != digest):
            state = "not as it was written" if name in there else "missing"
            raise CseError(f"{folder / TABLE_FOLDER}/{name}: {state}; {again}")
    return len(known)


def _digest(folder: Folder, name: str) -> str:
    with folder.open(f"{TABLE_FOLDER}/{name}") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
