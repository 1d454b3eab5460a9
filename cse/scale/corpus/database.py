"""The LanceDB database that a folder of vectors is: its one table, and whose that is."""

from __future__ import annotations

import os
from typing import Any

from cse.errors import CseError
from cse.scale.storage import Folder

TABLE = "index"
TABLE_FOLDER = f"{TABLE}.lance"
FACTS = b"cse"  # key of the table's metadata
FORMAT = 2  # of the table
WORDS = "_words"  # column of a text's words, as `cse.search.words` knows them, between blanks
_BUCKETS = ("s3", "gs", "az")


def connect(folder: Folder) -> Any:
    """Open a folder as a LanceDB database.

    Raises:
        CseError: lancedb is not installed, or the folder is neither on disk nor in a bucket.
    """
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


def refuse_foreign(folder: Folder) -> None:
    """Refuse a table that `cse index` did not make; one that cannot be opened was never finished.

    Raises:
        CseError: it is another program's, or lancedb is not installed, so that nobody can tell.
    """
    if TABLE_FOLDER not in folder.names():
        return
    database = connect(folder)
    try:
        metadata = database.open_table(TABLE).schema.metadata
    except (ValueError, RuntimeError, OSError):
        return
    if FACTS not in (metadata or {}):
        raise CseError(f"{folder / TABLE_FOLDER}: a table that `cse index` did not make; move it, and index again")
