"""The index of the documents that an adaptation leaves beside its bundle: ids, texts and vectors, to search at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cse.adapt.made import DOCUMENTS, INDEX, VECTORS
from cse.data.documents import BODIES, CORPUS, TITLES, read_documents
from cse.data.read import TABLES, as_stored, ending, open_table
from cse.errors import CseError
from cse.outputs import publish_file
from cse.runtime.bundle import read_manifest
from cse.runtime.kept_vectors import keep_vectors
from cse.runtime.uses import role_for
from cse.settings.data import DataSettings

_IDS = ("_id", "id")


def index_documents(data: DataSettings, out: Path) -> str:
    """Embed the documents as the bundle in a folder embeds them, index them there, and return in words what came of it.

    Documents that are there already stay: whatever was adapted, they keep the bare backbone's vectors. Those that were
    encoded to train or to measure are not encoded again.

    Args:
        data: group ``data`` of the adaptation.
    """
    if find_spec("lancedb") is None:
        return "no index: LanceDB is not installed (pip install 'cse[search]'), then `cse index`"
    from cse.search.corpus import Columns
    from cse.search.index import index_corpus
    from cse.search.rows import Choices

    bundle, folder = out / "bundle", out / INDEX
    try:
        corpus, names = _table(data) or _written(data, out / DOCUMENTS)
        texts = read_manifest(bundle).texts
        role = role_for("document", texts)
        role = role if role and texts[role] else None  # as the bare bundle, which an earlier stop may have chosen
        columns = Columns(names["text"], names.get("id", ""), title=names.get("title", ""))
        with keep_vectors(out / VECTORS, adds=False):  # which this thread alone reads
            done = index_corpus(str(corpus), str(folder), str(bundle), Choices(columns, role, threads=1))
    except CseError as error:
        return f"no index: {error}"
    return f'{done.documents:,} documents indexed: cse search {folder} "..."'


def _table(data: DataSettings) -> tuple[Path, dict[str, str]] | None:
    """Return the table of all documents, and its columns; None if they are not in one with ids and texts."""
    path = Path(data.train_path)
    path = as_stored(path / CORPUS) if path.is_dir() else path
    if ending(path) not in TABLES or not path.is_file() or any(one.view == "documents" for one in data.more):
        return None
    there = open_table(path, data.encoding).columns
    usual = {"id": _IDS, "text": BODIES, "title": TITLES}
    found = {key: next((name for name in names if name in there), None) for key, names in usual.items()}
    if data.encoding != "utf-8" or found["text"] is None:
        return None
    return path, {key: name for key, name in found.items() if name is not None}


def _written(data: DataSettings, path: Path) -> tuple[Path, dict[str, str]]:
    """Write the documents as a table; a file in a folder has its path as id, others are counted."""
    sources = [data.train_path, *(one.path for one in data.more if one.view == "documents")]

    def rows() -> Iterator[dict[str, Any]]:
        for number, source in enumerate(sources):
            for document in read_documents(Path(source), encoding=data.encoding):
                text = "\n\n".join(text for part in document.sections for text in part.paragraphs)
                name = str(document.place) if number == 0 else f"{number}/{document.place}"
                yield {"_id": name, "title": document.title, "text": text}

    with publish_file(path) as target, target.open("w", encoding="utf-8", newline="\n") as stream:
        for row in rows():
            if row["title"].strip() or row["text"].strip():
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path, {"id": "_id", "text": "text", "title": "title"}
