"""Texts as token ids, and rows of them as a padded batch.

Legend: ``n`` texts, ``b`` rows of a batch, ``l`` tokens of its longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHUNK = 8192
_UNSEEN = "\u115f\u1160\u2800\u3164\uffa0\ufffd"  # letters and pictures of no ink, and what was none
_NO_TOKENS = np.empty(0, np.int32)


def is_blank(text: str) -> bool:
    """Return whether a text says nothing: no letter, digit or picture, or a word for a missing value, as N/A."""
    word = "".join(islice((sign for sign in text if sign.isalnum() and sign not in _UNSEEN), 5)).casefold()
    if word:
        return word in ("na", "nan", "null", "none") or text.strip() == r"\N"
    return not any(category(sign) == "So" and sign not in _UNSEEN for sign in text)


class Tokens(NamedTuple):
    """Ids of all texts, one after another; where each starts, and the end (n + 1); and how many texts were cut."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    truncated: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text (n)."""
        return np.diff(self.starts)

    def row(self, index: int) -> NDArray[np.int32]:
        """Return the token ids of one text."""
        return self.ids[self.starts[index] : self.starts[index + 1]]

    @classmethod
    def of(cls, rows: Sequence[NDArray[np.int32]], truncated: int = 0) -> Tokens:
        """Return the tokens of texts whose ids are given one by one."""
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        return cls(np.concatenate([_NO_TOKENS, *rows]), starts, truncated)


def plain_copy(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy that neither pads nor truncates."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


class Tokenizers:
    """Copies of a tokenizer that truncate and do not pad, one per maximum length.

    Making a copy takes tens of milliseconds, so they are kept. The caller's tokenizer is not modified. Several threads
    may use one at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._copies: dict[int, Tokenizer] = {}

    def truncating_at(self, max_length: int) -> Tokenizer:
        """Return the copy that truncates at ``max_length`` tokens, special tokens included."""
        if max_length not in self._copies:  # two threads may both make it; either copy will do
            copy = plain_copy(self._tokenizer)
            copy.enable_truncation(max_length)
            self._copies[max_length] = copy
        return self._copies[max_length]

    @cached_property
    def whole(self) -> Tokenizer:
        """A copy that cuts and pads nothing."""
        return plain_copy(self._tokenizer)

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """Ids of the special tokens that the tokenizer puts before and after a text.

        Found without padding or truncation, which a tokenizer's file may set: ``[PAD]`` is a special token too.
        """
        tokenizer = plain_copy(self._tokenizer)
        candidates = ("a", *tokenizer.get_vocab())  # a vocabulary may lack "a" and a token for what it lacks
        text = next(text for text in candidates if tokenizer.encode(text, add_special_tokens=False).ids)
        encoding = tokenizer.encode(text)
        special = encoding.special_tokens_mask
        return encoding.ids[: special.index(0)], encoding.ids[len(special) - special[::-1].index(0) :]


def tokenize(texts: Sequence[str], limits: Sequence[int], tokenizers: Tokenizers) -> Tokens:
    """Return the tokens of texts, each cut at its own maximum length.

    Args:
        limits: maximum tokens of each (n), special tokens included.
    """
    pieces: list[NDArray[np.int32]] = [_NO_TOKENS] * len(texts)
    truncated = 0
    for max_length in set(limits):
        tokenizer = tokenizers.truncating_at(max_length)
        rows = [row for row, limit in enumerate(limits) if limit == max_length]
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            try:
                encodings = tokenizer.encode_batch_fast([texts[row] for row in chunk])
            except TypeError:
                raise CseError(_not_unicode([texts[row] for row in chunk])) from None
            for row, encoding in zip(chunk, encodings, strict=True):
                ids = encoding.ids
                pieces[row] = np.array(ids, np.int32)
                truncated += len(ids) == max_length and bool(encoding.overflowing)
    return Tokens.of(pieces, truncated)


def pad(
    rows: Sequence[NDArray[np.int32]], pad_id: int, multiple: int = 1, most: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids and mask (b, l) of a batch of rows; a batch without any tokens is all masked.

    Args:
        rows: token ids of each row (b).
        multiple: of which ``l`` is one, unless that is beyond ``most``.
        most: the longest ``l`` that the model takes.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    longest = max(1, int(lengths.max()))
    mask = np.arange(max(longest, min(-(-longest // multiple) * multiple, most))) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


def _not_unicode(texts: list[str]) -> str:
    """Name the text that the tokenizer refused."""
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return f"text {text[:40]!a}: contains a lone surrogate; decode the source with its own encoding"
    return f"the tokenizer refused a text among those that start {texts[0][:40]!r}"
