"""Title and sections of a Markdown or HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cse.data.passages import Section, section

_BLOCKS = (
    *("address", "article", "blockquote", "body", "br", "dd", "div", "dl", "dt", "figcaption", "figure", "hr", "li"),
    *("main", "ol", "p", "section", "table", "td", "th", "tr", "ul", "header"),
)
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_AROUND = frozenset((*_BLOCKS, *_HEADINGS))
_NO_TEXT = ("script", "style", "noscript", "template", "svg", "nav", "footer", "aside", "form", "button", "pre")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.M | re.S)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+?)[ \t]*$", re.M)

Blocks = Iterator[tuple[bool, str]]  # whether it is a heading, text


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
    named = title[1].strip("\"'") if title else ""
    return _sections(_markdown_blocks(text[front.end() :] if front else text), named)


def html_document(text: str) -> tuple[str, list[Section]]:
    """Return title (``<title>``, else the first heading) and sections of a page, without menus, code and scripts."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(text, "html.parser")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    return _sections(_html_blocks(soup), title)


def _sections(blocks: Blocks, title: str) -> tuple[str, list[Section]]:
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

    in_heading, in_table = False, False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("heading_open", "heading_close"):
            in_heading = token.type == "heading_open"
        elif token.type in ("table_open", "table_close"):
            in_table = token.type == "table_open"
        elif token.type == "inline" and not in_table:
            words = " ".join("".join(map(_inline, token.children or ())).split())
            if words:
                yield in_heading, words


def _inline(token: Any) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return " "
    return str(token.content) if token.type in ("text", "code_inline") else ""


def _html_blocks(soup: Any) -> Blocks:
    """Yield the text of each block: strings up to the next one of another block, or to an element that starts one."""
    from bs4 import NavigableString

    for tag in soup.find_all(["title", *_NO_TEXT]):
        tag.decompose()
    held: list[str] = []
    current: Any = None
    for node in soup.descendants:
        is_text = type(node) is NavigableString  # comments and the like are other types
        if not is_text and node.name not in _BLOCKS:
            continue
        around = [tag for tag in node.parents if tag.name in _AROUND]
        block = next((tag for tag in around if tag.name in _HEADINGS), around[0] if around else None)
        in_heading = block is not None and block.name in _HEADINGS
        if block is not current or not (is_text or in_heading):
            yield from _joined(current, held)
            held = []
        held.append(str(node) if is_text else " ")
        current = block
    yield from _joined(current, held)


def _joined(block: Any, texts: list[str]) -> Blocks:
    words = " ".join("".join(texts).split())
    if words:
        yield block is not None and block.name in _HEADINGS, words
