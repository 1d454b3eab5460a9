"""Title and sections of a Markdown or HTML file."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from cse.errors import CseError

_BLOCKS = (
    *("address", "article", "blockquote", "body", "br", "dd", "div", "dl", "dt", "figcaption", "figure", "hr", "li"),
    *("main", "ol", "p", "section", "table", "td", "th", "tr", "ul", "header"),
)
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_EDGE, _MARK = "\ue000", "\ue001"  # of a block, and of a heading behind its edge
_NO_TEXT = (
    *("title", "script", "style", "noscript", "template", "svg", "nav", "footer", "aside", "form", "button", "pre"),
)
_LARGE = 20_000  # blocks; looking for the article takes a millisecond for ten
# an attribute of a tag, as browsers find them; libxml2 compares the name of each with those before it
_ATTRIBUTE = r"""[\s/]*+([^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:"[^"]*+"?+|'[^']*+'?+|[^\s>]*+))?+"""
_TAG = re.compile(rf"<[a-zA-Z][^\s/>]*+((?:{_ATTRIBUTE})*+)")
_MOST_ATTRIBUTES = 5_000  # a second
_MARKS = re.compile(r"\[|\*+|_+")  # may open a link or emphasis; the time of a paragraph grows with their square
_MOST_MARKS = 5_000  # a second; a paragraph of more is read as plain text
_SCRIPT = re.compile(r"<(script|style)\b[^<]*+(?:<(?!/\1)[^<]*+)*+(?:</\1[^>]*+>?+)?+", re.IGNORECASE)
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.M | re.S)
_FRONT_TITLE = re.compile(r"^title:(.+)$", re.M)

Blocks = Iterator[tuple[bool, str]]  # whether it is a heading, text


class Section(NamedTuple):
    """Text under one heading, which is empty for text before the first one.

    The paragraphs have no line breaks inside. ``asked``: the heading is a question and the text its answer.
    """

    heading: str
    paragraphs: Sequence[str]
    asked: bool = False


def section(heading: str, paragraphs: Iterable[str]) -> Section:
    """Return a section of a text; it answers a question if its heading ends in a question mark."""
    return Section(heading, list(paragraphs), heading.rstrip().endswith(("?", "\uff1f", "\u061f")))


def plain_document(text: str) -> tuple[str, list[Section]]:
    """Return no title and the paragraphs of a plain text, which blank lines separate."""
    return "", [section("", paragraphs_of(text))]


def paragraphs_of(text: str) -> list[str]:
    """Return the paragraphs of a plain text."""
    return [part for part in re.split(r"\n[ \t\r]*\n", text) if part.strip()]


def markdown_document(text: str) -> tuple[str, list[Section]]:
    """Return title and sections of a Markdown text, without code and tables.

    The title is that of the front matter, else the first heading.
    """
    front = _FRONT_MATTER.match(text)
    title = _FRONT_TITLE.search(front[1]) if front else None
    named = title[1].strip().strip("\"'") if title else ""
    return _sections(_markdown_blocks(text[front.end() :] if front else text), named)


def html_document(text: str) -> tuple[str, list[Section]]:
    """Return title (``<title>``, else the first heading) and sections of a page, without menus, code and scripts.

    trafilatura says which text is the article's; pages that it finds nothing in, and very large ones, are read whole.
    """
    from lxml import etree, html

    text = _SCRIPT.sub(" ", text).replace(_EDGE, " ").replace(_MARK, " ")
    tags = (re.findall(_ATTRIBUTE, tag) for tag, _ in _TAG.findall(text) if len(tag) > 1000)
    if sum(len(names) * len(set(names)) for names in tags) > _MOST_ATTRIBUTES**2:
        raise CseError("its tags have too many attributes, so its text cannot be read; simplify the page")
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        root = html.document_fromstring(text.encode(), parser)
    except etree.ParserError:  # nothing in it
        return "", []
    if any(error.type_name == "ERR_RESOURCE_LIMIT" for error in parser.error_log):
        raise CseError("its elements are nested more than 256 deep, so its text cannot be read; simplify the page")
    named = root.find(".//title")
    title = "" if named is None else " ".join(named.text_content().split())
    blocks = list(_html_blocks(copy.deepcopy(root)))
    article = _article(root) if len(blocks) <= _LARGE else set()
    kept = [one for one in blocks if one[0] or _is_of(one[1], article)]
    if all(is_heading for is_heading, _ in kept):
        kept = blocks
    return _sections(kept, title)


def _article(root: Any) -> set[tuple[str, ...]]:
    """Return the words of a page's article and their neighbours, as far as trafilatura finds it."""
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it tells of every page without an article
    found = trafilatura.bare_extraction(root, include_comments=False, favor_recall=True)
    words = (found.text or "").split() if found is not None else []
    return {*pairwise(words), *((word,) for word in words)}


def _is_of(block: str, article: set[tuple[str, ...]]) -> bool:
    """Return whether most of a block is the article's; trafilatura cuts blocks elsewhere."""
    words = block.split()
    pairs: list[tuple[str, ...]] = [*pairwise(words)] or [(words[0],)]
    return 2 * sum(pair in article for pair in pairs) > len(pairs)


def _sections(blocks: Iterable[tuple[bool, str]], title: str) -> tuple[str, list[Section]]:
    """Join blocks to sections; without a title the first heading is the title and heads no section of its own."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for is_heading, text in blocks:
        if is_heading and not title:
            title = text
        if is_heading:
            parts.append((text, []))
        else:
            parts[-1][1].append(text)
    return title, [section(heading, paragraphs) for heading, paragraphs in parts if paragraphs]


def _markdown_blocks(text: str) -> Blocks:
    from markdown_it import MarkdownIt

    def keep_plain(state: Any) -> None:
        for token in state.tokens:
            if token.type == "inline" and len(_MARKS.findall(token.content)) > _MOST_MARKS:
                token.type = "plain"

    in_heading, in_table = False, False
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.before("inline", "marks", keep_plain)
    for token in parser.parse(text):
        if token.type in ("heading_open", "heading_close"):
            in_heading = token.type == "heading_open"
        elif token.type in ("table_open", "table_close"):
            in_table = token.type == "table_open"
        elif token.type in ("inline", "plain") and not in_table:
            read = token.content if token.type == "plain" else "".join(map(_inline, token.children or ()))
            words = " ".join(read.split())
            if words:
                yield in_heading, words


def _inline(token: Any) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return " "
    return str(token.content) if token.type in ("text", "code_inline") else ""


def _html_blocks(page: Any) -> Blocks:
    """Yield the text of each block, which ends where another one begins or ends; the page is changed."""
    from lxml import etree

    etree.strip_elements(page, *_NO_TEXT, with_tail=False)
    for element in page.iter(*_BLOCKS, *_HEADINGS):
        within = next(element.iterancestors(*_HEADINGS), None) is not None  # a heading is one block
        edge, mark = " " if within else _EDGE, _MARK if element.tag in _HEADINGS and not within else ""
        element.text, element.tail = f"{edge}{mark}{element.text or ''}", f"{edge}{element.tail or ''}"
    for text in "".join(page.itertext()).split(_EDGE):
        words = " ".join(text.removeprefix(_MARK).split())
        if words:
            yield text.startswith(_MARK), words
