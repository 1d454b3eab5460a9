"""Queries that a language model wrote for documents: cleaned, and what was left out counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

INSTRUCTION = Path(__file__).with_name("write_query.txt")
FAULTS = ("empty", "repeats itself", "repeats the instruction", "copies the document", "written twice")
EMPTY, ITSELF, OF_INSTRUCTION, OF_DOCUMENT, TWICE = FAULTS
_LABEL = re.compile(r"^\W*(?:search )?(?:query|question)\b\s*\d*\s*:\s*", re.IGNORECASE)
_AROUND = " \t\"'`*-\u2022\u201c\u201d"  # quotes and bullets
_LOOP = re.compile(r"(.{4,}?)\1\1")
_RUN, _OWN_RUN, _COPIED = 5, 3, 6  # words


def as_query(written: str) -> str:
    """Return the first line with text of what a model wrote, without label, quotes and bullets."""
    line = next((line for line in written.splitlines() if line.strip(_AROUND)), "")
    return _LABEL.sub("", line).strip(_AROUND)


def fault_of(query: str, document: str, instruction: str) -> str | None:
    """Return what is wrong with a query, of ``FAULTS``; None: nothing.

    A run of three words comes twice, or a string three times in a row; five words in a row, or the whole query, are
    the instruction's; or the query is six or more words of the document as they stand there.

    Args:
        query: from ``as_query``.
        document: that it was written for.
        instruction: that the model was given.
    """
    words = _words(query)
    if not words:
        return EMPTY
    runs = _runs(words, _OWN_RUN)
    if len(set(runs)) < len(runs) or _LOOP.search(query):
        return ITSELF
    asked = _words(instruction)
    if set(_runs(words, min(_RUN, len(words)))) & set(_runs(asked, min(_RUN, len(words)))):
        return OF_INSTRUCTION
    if len(words) >= _COPIED and f" {' '.join(words)} " in f" {' '.join(_words(document))} ":
        return OF_DOCUMENT
    return None


def clean(written: Mapping[str, Sequence[str]], instruction: str) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Return the usable queries, each with its document, and how many had each of ``FAULTS``.

    Args:
        written: what a model wrote for each document.
        instruction: that it was given.
    """
    kept: list[tuple[str, str]] = []
    faults: Counter[str] = Counter()
    for document, texts in written.items():
        seen: set[str] = set()
        for query in map(as_query, texts):
            fault = fault_of(query, document, instruction) or (TWICE if query.casefold() in seen else None)
            seen.add(query.casefold())
            if fault:
                faults[fault] += 1
            else:
                kept.append((query, document))
    return kept, faults


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _runs(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[place : place + length]) for place in range(len(words) - length + 1)]
