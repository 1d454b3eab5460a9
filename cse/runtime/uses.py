"""What a text may be used for, and how much of its vector: task texts by role, and shorter vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cse.artifact import short
from cse.errors import CseError, nearest

if TYPE_CHECKING:
    from cse.runtime.tokens import Tokenizers


QUERY = "query"  # the role whose vectors a query side makes
SIDES = ("both", QUERY)  # values of ``cse.choices.Side``, which the runtime does without
NO_TEXTS = {QUERY: "", "passage": ""}  # roles where no text tells them apart


def text_of(role: str | None, texts: Mapping[str, str]) -> str:
    """Return the task text of a role, which goes before a sentence; empty without a role."""
    if role is None:
        return ""
    if role not in texts:
        known = f"one of {', '.join(texts)}" if texts else "this model has none"
        raise CseError(f"role: {short(role)} is not known; {known}{nearest(str(role), texts)}")
    return texts[role]


_NAMES = {QUERY: (QUERY,), "document": ("document", "passage", "corpus")}  # of a kind of text, by preference


def role_for(kind: str, texts: Mapping[str, str]) -> str | None:
    """Return the role that a model declares for a ``query`` or a ``document``; None if it has none."""
    return next((name for name in _NAMES.get(kind, ()) if name in texts), None)


def check_room(text: str, tokenizers: Tokenizers, max_length: int, where: str) -> None:
    """Refuse a task text that leaves no room for a sentence."""
    if text and len(tokenizers.truncating_at(max_length).encode(text).ids) >= max_length:
        raise CseError(f"{where}: {short(text)} fills the {max_length} tokens and leaves no room for the sentence")


def check_dimensions(wanted: int | None, widths: Sequence[int], dimension: int) -> None:
    """Refuse a number of dimensions that the model was not trained for."""
    if wanted in (None, dimension, *widths):
        return
    allowed = ", ".join(map(str, [*widths, dimension]))
    reason = f"this model gives {allowed}" if widths else f"this model gives {dimension}, and its vectors cannot be cut"
    raise CseError(f"dimensions: {short(wanted)}; {reason}")
