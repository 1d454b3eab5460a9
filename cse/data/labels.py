"""Natural language inference labels in the forms that data sets use."""

from __future__ import annotations

from typing import Any

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
