"""Passages of a long document: its sections, those again in windows of about a hundred words with a quarter of overlap.

A text that is just longer than a model reads loses little where it is cut off, and nearness to one of several passages
is easier to have by chance: only a text that is clearly longer is split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

LONG = 2.5  # times what the model reads; a longer text is split
_WORDS, _OVERLAP = 100, 4  # of a window; every so many words of it stand in the next one too
_PART = 0.7  # of the model's limit in tokens: so many words of most languages fit
# a word; of scripts that write no blanks between words, two characters
_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
_WORD = re.compile(f"[{_DENSE}]{{1,2}}|[^\\s{_DENSE}]{{1,40}}")


def passages(text: str, sections: Sequence[str], limit: int) -> list[str]:
    """Split the text of a long document into passages.

    Args:
        sections: parts of the text, if it has any.
        limit: tokens that the model reads.
    """
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
