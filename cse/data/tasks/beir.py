"""Read a retrieval task in BEIR's layout: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/*.tsv``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from cse.data.checks import check_column, check_text, listed, no_rows, read_text, titled
from cse.data.read import as_stored, ending, is_data_name, open_table, plain, text_lines
from cse.data.shape import number_of
from cse.data.tasks.kinds import Retrieval, own_documents
from cse.errors import CseError
from cse.runtime.tokens import is_blank

CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
IDS = ("_id", "id")
_PREFERRED = ("test", "dev")
_HEADS = ("query-id", "query_id", "queryid", "query", "qid", "topic")
_ENDINGS = (".tsv", ".csv", ".txt", ".qrels", ".trec")
_COLUMNS = ("query-id", "corpus-id", "score")


def read_beir(folder: Path, name: str) -> Retrieval:
    """Read a retrieval task.

    A document's text is its title, a blank and its text; or its text alone where that starts with the title. As BEIR
    and trec_eval do, it goes on without what no measure is defined for, and counts it: documents without text,
    judgements of queries that are not there, queries without a relevant document. A relevant document that is not
    there is one that no search finds.
    """
    documents, empty = _texts(as_stored(folder / CORPUS), "title")
    queries, _ = _texts(as_stored(folder / QUERIES))
    path = _judgement_file(folder / JUDGEMENTS)
    every = _judgements(path)
    unknown = sum(query not in queries or document not in documents for query, document in every)
    relevant = {query for (query, _), grade in every.items() if grade > 0}
    texts = {query: text for query, text in queries.items() if query in relevant}
    judged = {pair: grade for pair, grade in every.items() if pair[0] in texts and (grade > 0 or pair[1] in documents)}
    findable = {query for (query, document), grade in judged.items() if grade > 0 and document in documents}
    if len(findable) < 2:
        lost = f" ({unknown:,} of {len(every):,} judgements are of ids that are not there)" if unknown else ""
        raise CseError(
            f"{path}: {len(findable)} of {len(queries)} queries with a relevant document{lost}; a task needs at "
            "least 2, add judgements"
        )
    query_at, document_at = ({key: place for place, key in enumerate(known)} for known in (texts, documents))
    rows = np.array(
        [(query_at[query], document_at.get(document, -1), grade) for (query, document), grade in judged.items()],
        np.int64,
    )
    return Retrieval(
        name,
        list(texts.values()),
        list(documents.values()),
        query=rows[:, 0],
        document=rows[:, 1],
        relevance=rows[:, 2],
        own=own_documents(document_at[key] if _is(text, documents.get(key)) else None for key, text in texts.items()),
        judged_in=f"{JUDGEMENTS}/{path.name}",
        left_out=len(queries) - len(texts),
        unknown=unknown,
        empty=empty,
    )


def write_beir(task: Retrieval, folder: Path) -> None:
    """Write a task into an empty folder, ids counted anew; a query that is a document has the id of that."""
    own = [-1] * len(task) if task.own is None else task.own.tolist()
    ids = [f"q{number}" if place < 0 else str(place) for number, place in enumerate(own)]
    judged = zip(task.query.tolist(), task.document.tolist(), task.relevance.tolist(), strict=True)
    found = [
        (ids[query], str(document) if document >= 0 else f"lost{row}", str(grade))
        for row, (query, document, grade) in enumerate(judged)
    ]

    def records(keys: Iterable[object], texts: Sequence[str]) -> Iterator[str]:
        rows = zip(map(str, keys), texts, strict=False)
        return (json.dumps({"_id": key, "text": text}, ensure_ascii=False) for key, text in rows)

    files = {
        CORPUS: records(count(), task.documents),
        QUERIES: records(ids, task.queries),
        f"{JUDGEMENTS}/{_PREFERRED[0]}.tsv": map("\t".join, [_COLUMNS, *found]),
    }
    (folder / JUDGEMENTS).mkdir(parents=True)
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def document_ids(folder: Path) -> tuple[list[str], int]:
    """Return the ids of a task's documents, in the order of ``Retrieval.documents``, and how many have no text."""
    found, empty = _texts(as_stored(folder / CORPUS), "title")
    return list(found), empty


def _is(query: str, document: str | None) -> bool:
    """Return whether the document with a query's id has its text too, alone or behind a title: ids may count both."""
    return document is not None and (document == query or document.endswith(f" {query}"))


def _texts(path: Path, *title: str) -> tuple[dict[str, str], int]:
    """Return the texts by id, in the order of the file, and how many were empty."""
    table = open_table(path)
    key = next((name for name in IDS if name in table.columns), IDS[0])
    for column in (key, "text"):
        check_column(column, table.columns, str(path), "BEIR's layout")
    lines: dict[str, int] = {}
    found: dict[str, str] = {}
    for line, values in table.pick([key, "text", *title]):
        if values:
            where, (value, *parts) = f"{path}:{line}", values
            named = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
            if not named:
                raise CseError(f"{where}: no id; give each line its own {key}")
            if lines.setdefault(named, line) != line:
                raise CseError(f"{where}: id {named[:40]!r} is that of line {lines[named]}; give each its own")
            text, head = [*(check_text(part, where) for part in parts), None][:2]
            text = titled(head, text or "")
            if not is_blank(text):
                found[named] = read_text(text, "text", where)
    if not found:
        raise no_rows(str(path))
    return found, len(lines) - len(found)


def _judgement_file(folder: Path) -> Path:
    """Return the file of judgements in use."""
    inside = folder.iterdir() if folder.is_dir() else ()
    files = [path for path in inside if ending(path) in _ENDINGS and is_data_name(path.name)]
    files.sort(key=lambda path: (_ENDINGS.index(ending(path)), path.name))
    if not files:
        raise CseError(f"{folder}: no .tsv file in it; put the judgements into test.tsv")
    chosen = next((path for name in _PREFERRED for path in files if plain(path).stem == name), files[0])
    if plain(chosen).stem not in _PREFERRED and len(files) > 1:
        raise CseError(f"{folder}: several files ({listed(path.name for path in files)}); name one test.tsv")
    return chosen


def _judgements(path: Path) -> dict[tuple[str, str], int]:
    """Read BEIR's three columns, with or without their header, or trec_eval's four.

    Tabs or blanks separate them, or else commas or semicolons.
    """
    found: dict[tuple[str, str], int] = {}
    lines: dict[tuple[str, str], int] = {}
    begun = False
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        fields = line.strip().split("\t" if "\t" in line else None)
        fields = re.split("[,;]", fields[0]) if len(fields) == 1 else fields
        fields = [field.strip().strip('"') for field in fields]
        begun, first = True, not begun
        if first and math.isnan(number_of(fields[-1])):
            if fields[0].lower() in _HEADS:
                continue
            raise CseError(f"{path}:{number}: {listed(fields)}; give query-id, corpus-id, score, in this order")
        if len(fields) not in (3, 4):
            raise CseError(f"{path}:{number}: {len(fields)} fields; give query-id, corpus-id, score, tabs between")
        if not number_of(fields[-1]).is_integer():
            raise CseError(f"{path}:{number}: score {fields[-1][:40]!r} is not a whole number; correct it")
        pair, grade = (fields[0], fields[-2]), int(number_of(fields[-1]))
        if found.setdefault(pair, grade) != grade:
            raise CseError(f"{path}:{number}: score {grade}, but {found[pair]} in line {lines[pair]}; keep one of them")
        lines.setdefault(pair, number)
    if not found:
        raise no_rows(str(path))
    return found
