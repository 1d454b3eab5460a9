"""Long documents split into passages, so that a model reads all of them.

Passages are a document's sections, those again in windows of about a hundred words with a quarter of overlap. A text
that is just longer than a model reads loses little where it is cut off, and nearness to one of several passages is
easier to have by chance: only a text that is clearly longer is split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

LONG = 2.5  # times what the model reads; a longer text is split
_WORDS, _OVERLAP = 100, 4  # of a window; every so many words of it stand in the next one too
_PART = 0.7  # of the model's limit in tokens: so many words of most languages fit
# a word; of scripts that write no blanks between words, two characters
_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
_WORD = re.compile(f"[{_DENSE}]{{1,2}}|[^\\s{_DENSE}]{{1,40}}")


class Split(NamedTuple):
    """The passages of a document, and whether a model cuts it: it is longer than that reads and not split."""

    passages: list[str]
    cut: bool


@runtime_checkable
class Tokenizing(Protocol):
    """A model that reads up to ``max_length`` tokens and counts those of texts."""

    max_length: int

    def token_counts(self, texts: Sequence[str], /) -> list[int]:
        """Return how many tokens texts have, however long they are."""
        ...


def split(
    texts: Sequence[str], sections: Sequence[Sequence[str]], limit: int, count: Callable[[Sequence[str]], list[int]]
) -> list[Split]:
    """Split the long ones among some documents, for a model that reads ``limit`` tokens.

    Args:
        sections: of each document, which its passages keep to; may be none.
        count: returns how many tokens texts have.
    """
    counts = [len(text) if len(text) <= limit else len(text) // 16 for text in texts]  # about, of short and very long
    unsure = [row for row, text in enumerate(texts) if len(text) > limit and counts[row] <= LONG * limit]
    for row, exact in zip(unsure, count([texts[row] for row in unsure]), strict=True):
        counts[row] = exact
    made = []
    for text, parts, tokens in zip(texts, sections, counts, strict=True):
        found = passages(text, parts, limit) if tokens > LONG * limit else [text]
        made.append(Split(found, tokens > limit and len(found) == 1))
    return made


def passages(text: str, sections: Sequence[str], limit: int) -> list[str]:
    """Split the text of a long document, or its sections if it has any, for a model that reads ``limit`` tokens."""
    words = max(min(_WORDS, int(_PART * limit)), _OVERLAP)
    return [passage for part in (sections or [text]) for passage in _windows(part, words)]


def _windows(text: str, words: int) -> Iterator[str]:
    spans = [match.span() for match in _WORD.finditer(text)]
    step = words - words // _OVERLAP
    for start in range(0, len(spans), step):
        end = min(start + words, len(spans))
        if len(spans) - end < words // _OVERLAP:  # no rest of a few words
            end = len(spans)
        yield text[spans[start][0] : spans[end - 1][1]]
        if end == len(spans):
            return
