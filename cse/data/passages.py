"""Documents: their sentences, their passages, and the training rows that come out of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cse.data.checks import titled
from cse.data.shape import Row
from cse.data.store import STAND_INS

SENTENCES = "sentences"
PASSAGE_WORDS = 60  # at most, unless one sentence has more
_WHOLE_WORDS = 1000  # of a document: a language model reads no more of it
_WINDOW = 10_000  # characters at a time: what looks for the ends takes time with their square
_ENDS = ".?!:;"  # a title that ends so, or that is followed so, ends a sentence
_DASHES = "-\u2013\u2014|"


@dataclass(frozen=True)
class Section:
    """Text under one heading.

    Attributes:
        heading: the heading; empty for text before the first one.
        paragraphs: the text, without line breaks inside a paragraph.
        asked: whether the heading is a question and the text its answer.
    """

    heading: str
    paragraphs: Sequence[str]
    asked: bool = False


@dataclass(frozen=True)
class Document:
    """A document as it was read.

    Attributes:
        place: line of a table or file in a folder.
        title: its title; may be empty.
        sections: its text in order.
    """

    place: int | str
    title: str
    sections: Sequence[Section]


def section(heading: str, paragraphs: Iterable[str]) -> Section:
    """Return a section of a text; it answers a question if its heading ends in a question mark."""
    return Section(heading, list(paragraphs), heading.rstrip().endswith(("?", "\uff1f", "\u061f")))


def document_rows(
    documents: Iterable[Document], kinds: Sequence[str], *, language: str, stand_ins: int = 5
) -> Iterator[Row]:
    """Yield the training rows of documents, grouped by document; one row with a fault for a document without any.

    Args:
        documents: the documents in order.
        kinds: values of ``data.pairs``.
        stand_ins: most rows of a document where these are wanted.
    """
    for document in documents:
        paragraphs = [text for part in document.sections for text in part.paragraphs]
        if not any(map(str.strip, paragraphs)) and not (STAND_INS in kinds and document.title.strip()):
            yield Row(document.place, (), fault="empty_document")
            continue
        found = False
        made = _stand_ins(document, language, stand_ins) if STAND_INS in kinds else _texts_of(document, kinds, language)
        for texts in made:
            found = True
            yield Row(document.place, texts, group=str(document.place))
        if not found:
            yield Row(document.place, (), fault="no_pair")


def _texts_of(document: Document, kinds: Sequence[str], language: str) -> Iterator[tuple[str, ...]]:
    title = " ".join(document.title.split())
    if SENTENCES in kinds:
        for part in document.sections:
            yield from ((sentence.strip(),) for sentence in _sentences(part.paragraphs, language))
        return
    sections = _without_title(title, document.sections)
    passages = [passages_of(part.paragraphs, language, PASSAGE_WORDS) for part in sections]
    flat = [passage for found in passages for passage in found]
    if "title_body" in kinds and title and flat:
        yield title, flat[0]
    if "neighbours" in kinds:
        yield from pairwise(flat)
    if "question_answer" in kinds:
        for part, found in zip(sections, passages, strict=True):
            if part.asked and found:
                yield " ".join(part.heading.split()), found[0]


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


def _without_title(title: str, sections: Sequence[Section]) -> list[Section]:
    """Cut the title off the first paragraph if it stands there as a line or sentence of its own."""
    sections = list(sections)
    for number, part in enumerate(sections):
        for place, paragraph in enumerate(part.paragraphs):
            if paragraph.strip():
                cut = cut_title(title, paragraph)
                rest = [cut] if cut else []
                sections[number] = Section(part.heading, [*rest, *part.paragraphs[place + 1 :]], part.asked)
                return sections
    return sections


def cut_title(title: str, text: str) -> str:
    """Return a text without its title at the start; unchanged where a sentence begins with the words of the title."""
    text = " ".join(text.split())
    if not title or text[: len(title)].casefold() != title.casefold():
        return text
    rest = text[len(title) :]
    after = rest.lstrip()
    starts_anew = after[:1].isupper() and rest[:1].isspace() and len(title.split()) > 2
    if after and not (title[-1] in _ENDS or after[0] in _ENDS + _DASHES or starts_anew):
        return text
    return after.lstrip(_ENDS + _DASHES + " ")
