"""The language of a text, by its characters: ``py3langid``, a model of 97 languages that needs no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice

_CHUNK = 500  # characters that are judged at once; a sentence alone is often too short
_MOST = 40  # chunks
_LEAST = 200  # characters; less tells nothing
_SHARE = 0.6  # of the chunks


def language_of(texts: Iterable[str]) -> str | None:
    """Return the ISO 639-1 code of the language of most of the text; None if there is none, or too little text."""
    import py3langid

    text = "".join(islice(chain.from_iterable(f"{text} " for text in texts), _CHUNK * _MOST))
    if len(text) < _LEAST:
        return None
    found = Counter(py3langid.classify(text[start : start + _CHUNK])[0] for start in range(0, len(text), _CHUNK))
    language, chunks = found.most_common(1)[0]
    return str(language) if chunks >= _SHARE * found.total() else None
