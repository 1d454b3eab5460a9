"""Read a retrieval task in BEIR's layout: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/*.tsv``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from cse.data.checks import check_column, check_text, listed, no_rows, titled
from cse.data.tables import open_table
from cse.data.tasks.files import read_text
from cse.data.tasks.kinds import Retrieval, own_documents
from cse.data.tasks.layout import CORPUS, JUDGEMENTS, QUERIES
from cse.errors import CseError

_PREFERRED = ("test.tsv", "dev.tsv")
_COLUMNS = ("query-id", "corpus-id", "score")
Judged = dict[tuple[str, str], tuple[int, int]]  # query and document: line and grade


def read_beir(folder: Path, name: str) -> Retrieval:
    """Read a retrieval task.

    A document's text is its title, a blank and its text; or its text alone where that starts with the title. Queries
    without a relevant document in the file of judgements are left out and counted: no measure is defined for them.

    Raises:
        CseError: anything wrong with a file; an empty text; an id that occurs twice; a judgement of an unknown id; or
            fewer than two queries with a relevant document.
    """
    documents = _texts(folder / CORPUS, titled=True)
    queries = _texts(folder / QUERIES)
    path = _judgement_file(folder / JUDGEMENTS)
    judged = _judgements(path)
    for (query, document), (line, _) in judged.items():
        for there, known, file in ((query, queries, QUERIES), (document, documents, CORPUS)):
            if there not in known:
                raise CseError(f"{path}:{line}: id {there[:40]!r} is not in {file}; add it there or drop the judgement")
    relevant = {query for (query, _), (_, grade) in judged.items() if grade > 0}
    judged = {pair: found for pair, found in judged.items() if pair[0] in relevant}
    texts = {query: text for query, (_, text) in queries.items() if query in relevant}
    if len(texts) < 2:
        raise CseError(
            f"{path}: {len(texts)} of {len(queries)} queries with a relevant document; a task needs at "
            "least 2, add judgements"
        )
    query_at, document_at = ({key: place for place, key in enumerate(known)} for known in (texts, documents))
    rows = np.array(
        [(query_at[query], document_at[document], grade) for (query, document), (_, grade) in judged.items()], np.int64
    )
    return Retrieval(
        name,
        list(texts.values()),
        [text for _, text in documents.values()],
        query=rows[:, 0],
        document=rows[:, 1],
        relevance=rows[:, 2],
        own=own_documents(document_at[key] if _is(text, documents.get(key)) else None for key, text in texts.items()),
        judged_in=f"{JUDGEMENTS}/{path.name}",
        left_out=len(queries) - len(texts),
    )


def write_beir(task: Retrieval, folder: Path) -> None:
    """Write a task into an empty folder, ids counted anew; a query that is a document has the id of that."""
    (folder / JUDGEMENTS).mkdir(parents=True)
    own = [-1] * len(task) if task.own is None else task.own.tolist()
    ids = [f"q{number}" if place < 0 else str(place) for number, place in enumerate(own)]
    documents = [{"_id": str(place), "text": text} for place, text in enumerate(task.documents)]
    queries = [{"_id": key, "text": text} for key, text in zip(ids, task.queries, strict=True)]
    for name, rows in ((CORPUS, documents), (QUERIES, queries)):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / name).write_text("".join(lines), encoding="utf-8", newline="\n")
    judged = zip(task.query.tolist(), task.document.tolist(), task.relevance.tolist(), strict=True)
    lines = (f"{ids[query]}\t{document}\t{grade}\n" for query, document, grade in judged)
    (folder / JUDGEMENTS / _PREFERRED[0]).write_text(
        "\t".join(_COLUMNS) + "\n" + "".join(lines), encoding="utf-8", newline="\n"
    )


def document_ids(folder: Path) -> list[str]:
    """Return the ids of a task's documents, in the order of ``Retrieval.documents``."""
    return list(_texts(folder / CORPUS, titled=True))


def _is(query: str, document: tuple[int, str] | None) -> bool:
    """Return whether the document with a query's id has its text too, alone or behind a title: ids may count both."""
    return document is not None and (document[1] == query or document[1].endswith(f" {query}"))


def _texts(path: Path, *, titled: bool = False) -> dict[str, tuple[int, str]]:
    """Return line and text by id, in the order of the file."""
    table = open_table(path)
    columns = ["_id", "text", *(["title"] if titled else [])]
    for column in columns[:2]:
        check_column(column, table.columns, str(path), "BEIR's layout")
    found: dict[str, tuple[int, str]] = {}
    for line, values in table.pick(columns):
        if not values:
            continue
        where = f"{path}:{line}"
        key, text, *title = values
        key = _id(key, where)
        if key in found:
            raise CseError(f"{where}: id {key[:40]!r} is that of line {found[key][0]}; give each its own")
        found[key] = line, _with_title(title[0] if title else None, text, where)
    if not found:
        raise no_rows(str(path))
    return found


def _with_title(title: Any, text: Any, where: str) -> str:
    return read_text(titled(check_text(title, where), check_text(text, where) or ""), "text", where)


def _id(value: Any, where: str) -> str:
    key = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not key:
        raise CseError(f"{where}: no id; give each line its own _id")
    return key


def _judgement_file(folder: Path) -> Path:
    """Return the file of judgements in use."""
    files = sorted(path for path in folder.glob("*.tsv") if not path.name.startswith("."))
    if not files:
        raise CseError(f"{folder}: no .tsv file in it; put the judgements into test.tsv")
    chosen = next((path for name in _PREFERRED for path in files if path.name == name), files[0])
    if chosen.name not in _PREFERRED and len(files) > 1:
        raise CseError(f"{folder}: several files ({listed(path.name for path in files)}); name one test.tsv")
    return chosen


def _judgements(path: Path) -> Judged:
    table = open_table(path)
    for column in _COLUMNS:
        check_column(column, table.columns, str(path), "BEIR's header")
    found: Judged = {}
    for line, values in table.pick(_COLUMNS):
        if not values:
            continue
        query, document = (value.strip() for value in values[:2])
        grade = _grade(values[2], f"{path}:{line}")
        earlier = found.setdefault((query, document), (line, grade))
        if earlier[1] != grade:
            raise CseError(f"{path}:{line}: score {grade}, but {earlier[1]} in line {earlier[0]}; keep one of them")
    if not found:
        raise no_rows(str(path))
    return found


def _grade(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CseError(f"{where}: score {text[:40]!r} is not a whole number; correct it") from None
