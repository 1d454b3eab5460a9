"""Documents: read them, cut them into sentences and passages, and make training rows of them.

They are tables with a title and a body, or text, Markdown and HTML files.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from cse.data.checks import check_column, check_text, listed, no_rows, titled
from cse.data.markup import Section, html_document, markdown_document, paragraphs_of, plain_document, section
from cse.data.read import (
    FORMATS,
    TABLES,
    TableFile,
    as_stored,
    check_exists,
    data_files,
    ending,
    find_data_file,
    is_data_name,
    open_table,
    text_lines,
)
from cse.data.shape import Row
from cse.data.store import STAND_INS
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
SENTENCES = "sentences"
_CHUNK, _MOST_CHUNKS, _LEAST_TEXT = 500, 40, 200  # characters judged at once, how often, and too few to tell
_SHARE = 0.6  # of the chunks are of the language
PASSAGE_WORDS = 60  # at most, unless one sentence has more
_WHOLE_WORDS = 1000  # of a document: a language model reads no more of it
_WINDOW = 10_000  # characters at a time: what looks for the ends takes time with their square


class Document(NamedTuple):
    """A document as it was read; its place is a line of a table or a file in a folder, its title may be empty."""

    place: int | str
    title: str
    sections: Sequence[Section]


# ---- files ---------------------------------------------------------------------------------------------------------


def read_documents(
    path: Path, columns: Sequence[str] | None = None, *, questions: bool = False, encoding: str = "utf-8"
) -> Iterator[Document]:
    """Stream the documents of a table, a file or a folder of files.

    Args:
        path: a table (csv, tsv, jsonl, parquet), one text, Markdown or HTML file, or a folder: of such files (one
            document each, in folders below it too), with one table, or of BEIR.
        columns: columns of a table: title and body, or question and answer; None: the usual names.
        questions: whether these are question and answer, if a table has both.
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
    return texts or [find_data_file(folder)]


def _file(path: Path, place: int | str, encoding: str) -> Document:
    read = FILES.get(ending(path))
    if read is None:
        kinds = ", ".join(sorted({*FORMATS, *FILES}))
        raise CseError(f"{path}: cannot read {ending(path) or 'suffixless'} files as documents; use one of {kinds}")
    text = "\n".join(text_lines(path, encoding))
    with in_terms_of(f"{path}: "):
        title, sections = read(text)
    return Document(place, title, sections)


def _table(path: Path, columns: Sequence[str] | None, questions: bool, encoding: str) -> Iterator[Document]:
    table = open_table(path, encoding)
    there = table.columns
    if columns is None:
        title, body = (next((name for name in usual if name in there), None) for usual in (TITLES, BODIES))
        questions = {QUESTION, ANSWER} <= set(there) and (questions or body is None)
        if body is None and not questions:
            raise CseError(
                f"{path}: no column {', '.join(BODIES)}, nor {QUESTION} and {ANSWER}; the columns are {listed(there)}; "
                "name title and body in data.columns"
            )
        columns = [QUESTION, ANSWER] if questions else [name for name in (title, body) if name]
    for name in columns:
        check_column(name, there, str(path), "data.columns")
    return _documents(table, columns, questions)


def _documents(table: TableFile, columns: Sequence[str], questions: bool) -> Iterator[Document]:
    number = None
    for number, values in table.pick(columns):
        texts = [check_text(value, f"{table.shown}:{number}") or "" for value in values or [None]]
        head, text = ["", *texts][-2:]
        paragraphs = paragraphs_of(text)
        if questions:
            asked = [Section(head.strip(), paragraphs, asked=True)] if head.strip() and paragraphs else []
            yield Document(number, "", asked)
        else:
            yield Document(number, head, [section("", paragraphs)] if paragraphs else [])
    if number is None:
        raise no_rows(table.shown)


# ---- sentences, passages and rows ----------------------------------------------------------------------------------


def document_rows(documents: Iterable[Document], kind: str, *, language: str, stand_ins: int = 5) -> Iterator[Row]:
    """Yield the training rows of documents, grouped by document; one row with a fault for a document without any.

    ``kind`` is a value of ``data.pairs``; ``stand_ins`` are most rows of a document where these are wanted.
    """
    for document in documents:
        paragraphs = [text for part in document.sections for text in part.paragraphs]
        if not any(map(str.strip, paragraphs)) and not (kind == STAND_INS and document.title.strip()):
            yield Row(document.place, (), fault="empty_document")
            continue
        made = _stand_ins(document, language, stand_ins) if kind == STAND_INS else _texts_of(document, kind, language)
        row = None
        for texts in made:
            row = Row(document.place, texts, group=str(document.place))
            yield row
        if row is None:
            yield Row(document.place, (), fault="no_pair")


def _texts_of(document: Document, kind: str, language: str) -> Iterator[tuple[str, ...]]:
    for part in document.sections:
        if kind == SENTENCES:
            yield from ((sentence.strip(),) for sentence in _sentences(part.paragraphs, language))
        elif part.asked and (passages := passages_of(part.paragraphs, language, PASSAGE_WORDS)):
            yield " ".join(part.heading.split()), passages[0]


def whole_document(document: Document) -> str:
    """Return the text of a document as a search task holds it, its title first, cut after 1,000 words."""
    return cut_whole(titled(document.title, " ".join(text for part in document.sections for text in part.paragraphs)))


def cut_whole(text: str) -> str:
    """Return the first 1,000 words of a document's text, a blank between each."""
    return " ".join(text.split()[:_WHOLE_WORDS])


def _stand_ins(document: Document, language: str, most: int) -> Iterator[tuple[str, ...]]:
    """Yield texts that stand in for queries, the title and sentences at even intervals, each with the document."""
    title, whole = " ".join(document.title.split()), whole_document(document)
    found = [sentence.strip() for part in document.sections for sentence in _sentences(part.paragraphs, language)]
    sentences = [sentence for sentence in dict.fromkeys(found) if sentence != title]
    room = most - bool(title)
    if len(sentences) > room:
        sentences = [sentences[place * len(sentences) // room] for place in range(room)]
    yield from ((text, whole) for text in ([title] if title else []) + sentences)


def passages_of(paragraphs: Iterable[str], language: str, words: int) -> list[str]:
    """Cut paragraphs into passages of whole sentences, each as long as ``words`` allows."""
    passages: list[str] = []
    held, size = "", 0
    for sentence in _sentences(paragraphs, language):
        more = _words(sentence)
        if held and size + more > words:
            passages.append(held.strip())
            held, size = "", 0
        held, size = held + sentence, size + more
    return [*passages, held.strip()] if held.strip() else passages


def _sentences(paragraphs: Iterable[str], language: str) -> Iterator[str]:
    """Yield the sentences with the white space behind them."""
    from sentencex import segment

    for paragraph in paragraphs:
        text, start = " ".join(paragraph.split()) + " ", 0
        while start < len(text):
            found = list(segment(language, text[start : start + _WINDOW]))
            if len(found) > 1 and start + _WINDOW < len(text):
                found.pop()  # it may go on behind the window
            start += sum(map(len, found)) or _WINDOW
            yield from (sentence for sentence in found if sentence.strip())


def _words(sentence: str) -> int:
    """Return the number of words; two wide characters, as of Chinese, stand for one."""
    if sentence.isascii():
        return len(sentence.split())
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in sentence)
    return max(len(sentence.split()), wide // 2)


def language_of(texts: Iterable[str]) -> str | None:
    """Return the ISO 639-1 code of the language of most of the text; None if there is none, or too little text.

    py3langid tells it by the characters, without a network.
    """
    import py3langid

    text = "".join(islice(chain.from_iterable(f"{text} " for text in texts), _CHUNK * _MOST_CHUNKS))
    if len(text) < _LEAST_TEXT:
        return None
    found = Counter(py3langid.classify(text[start : start + _CHUNK])[0] for start in range(0, len(text), _CHUNK))
    language, chunks = found.most_common(1)[0]
    return str(language) if chunks >= _SHARE * found.total() else None
