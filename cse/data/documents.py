"""Read documents: tables with a title and a body, or text, Markdown and HTML files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cse.data.checks import check_column, check_text, listed, no_rows
from cse.data.markup import html_document, markdown_document, paragraphs_of, plain_document
from cse.data.passages import Document, Section, section
from cse.data.read import (
    FORMATS,
    TABLES,
    as_stored,
    check_exists,
    data_files,
    ending,
    is_data_name,
    open_table,
    text_lines,
)
from cse.errors import CseError, in_terms_of

FILES: dict[str, Callable[[str], tuple[str, list[Section]]]] = {
    ".txt": plain_document,
    ".md": markdown_document,
    ".markdown": markdown_document,
    ".html": html_document,
    ".htm": html_document,
}
CORPUS = "corpus.jsonl"  # the documents in a folder of BEIR
TITLES, BODIES = ("title",), ("text", "body", "content", "abstract")
QUESTION, ANSWER = "question", "answer"


def read_documents(
    path: Path, columns: Sequence[str] | None = None, *, questions: bool = False, encoding: str = "utf-8"
) -> Iterator[Document]:
    """Stream the documents of a table, a file or a folder of files.

    Args:
        path: a table (csv, tsv, jsonl, parquet), one text, Markdown or HTML file, or a folder: of such files (one
            document each, in folders below it too), with one table, or of BEIR.
        columns: columns of a table: title and body, or question and answer; None: the usual names.
        questions: whether ``columns`` are question and answer.
    """
    check_exists(path, "data.train_path")
    found = _files(path) if path.is_dir() else [path]
    if ending(found[0]) in TABLES:
        return _table(found[0], columns, questions, encoding)
    if columns is not None:
        raise CseError(f"{path}: these files have no named columns; set data.columns: null")
    return (_file(each, each.relative_to(path).as_posix() if path.is_dir() else 1, encoding) for each in found)


def _files(folder: Path) -> list[Path]:
    """Return the one table or all text files of a folder."""
    if as_stored(folder / CORPUS).is_file():
        return [as_stored(folder / CORPUS)]
    inside = [each for each in sorted(folder.rglob("*")) if each.is_file()]
    named = [each for each in inside if all(map(is_data_name, each.relative_to(folder).parts))]
    texts = [each for each in named if ending(each) in FILES]
    tables = [each for each in data_files(folder) if ending(each) in TABLES]
    if texts and tables:
        raise CseError(f"{folder}: both files of text and tables ({listed(f.name for f in tables)}); name one file")
    if len(tables) > 1:
        raise CseError(f"{folder}: several tables ({listed(f.name for f in tables)}); name one in data.train_path")
    if not texts and not tables:
        kinds = ", ".join(sorted({*FORMATS, *FILES}))
        raise CseError(f"{folder}: no document in this folder; put {kinds} files there or set data.train_path")
    return texts or tables


def _file(path: Path, place: int | str, encoding: str) -> Document:
    read = FILES.get(ending(path))
    if read is None:
        kinds = ", ".join(sorted({*FORMATS, *FILES}))
        raise CseError(f"{path}: cannot read {ending(path) or 'suffixless'} files as documents; use one of {kinds}")
    lines = (check_text(line, f"{path}:{number}") or "" for number, line in enumerate(text_lines(path, encoding), 1))
    with in_terms_of(f"{path}: "):
        title, sections = read("\n".join(lines))
    return Document(place, title, sections)


def _table(path: Path, columns: Sequence[str] | None, questions: bool, encoding: str) -> Iterator[Document]:
    table = open_table(path, encoding)
    if columns is not None:
        for name in columns:
            check_column(name, table.columns, str(path), "data.columns")
        names = [None, None, *columns] if questions else [*columns, None, None]
    else:
        names = _usual(path, table.columns)
    there = [name for name in names if name is not None]

    def documents() -> Iterator[Document]:
        number = None
        for number, values in table.pick(there, len(there)):
            texts = iter(values or [None] * len(there))
            title, body, question, answer = (
                None if name is None else check_text(next(texts), f"{path}:{number}") for name in names
            )
            yield _from_fields(number, title, body, question, answer)
        if number is None:
            raise no_rows(str(path))

    return documents()


def _usual(path: Path, there: Sequence[str]) -> list[str | None]:
    """Return the columns of title, body, question and answer, those that are missing as None."""
    title, body = (next((name for name in usual if name in there), None) for usual in (TITLES, BODIES))
    asked = QUESTION in there and ANSWER in there
    if body is None and not asked:
        raise CseError(
            f"{path}: no column {', '.join(BODIES)}, nor {QUESTION} and {ANSWER}; the columns are {listed(there)}; "
            "name title and body in data.columns"
        )
    return [title, body, *((QUESTION, ANSWER) if asked else (None, None))]


def _from_fields(place: int, title: Any, body: Any, question: Any, answer: Any) -> Document:
    sections = [section("", paragraphs_of(body or ""))]
    if (question or "").strip():
        sections.append(Section(question.strip(), paragraphs_of(answer or ""), asked=True))
    return Document(place, title or "", [part for part in sections if part.paragraphs])
