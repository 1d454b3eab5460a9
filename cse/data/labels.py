"""Labels in the forms that data sets use: natural language inference, and any others."""

from __future__ import annotations

from typing import Any

from cse.data.checks import check_text
from cse.errors import CseError

LABELS = ("entailment", "neutral", "contradiction")
# SNLI and MultiNLI mark pairs without annotator agreement
NO_GOLD = ("-", "-1", "")


def read_label(value: Any, where: str) -> str | None:
    """Return one of ``LABELS``, or None for a pair without a gold label.

    Accepts words in any case, or numbers in the order of ``LABELS`` (SNLI's and GLUE's: 0 entailment, 1 neutral, 2
    contradiction).

    Raises:
        CseError: anything else; ``where`` gives file and line.
    """
    if value is None:
        return None
    text = str(value).strip().lower()
    if text in NO_GOLD:
        return None
    if text in LABELS:
        return text
    if text in ("0", "1", "2"):
        return LABELS[int(text)]
    raise CseError(f"{where}: label {str(value)[:40]!r} is not one of {', '.join(LABELS)}, 0, 1, 2; correct it")


def read_category(value: Any, where: str) -> str | None:
    """Return any label as text, or None for a blank one.

    Raises:
        CseError: neither text nor a whole number; ``where`` gives file and line.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise CseError(f"{where}: label {str(value)[:40]!r} is neither text nor a whole number; correct it")
    return (check_text(str(value), where) or "").strip() or None
