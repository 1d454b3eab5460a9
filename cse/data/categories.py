"""Pairs of texts with the same label."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from cse.data.clean import CleaningReport
from cse.data.readers import Row
from cse.errors import CseError

ALONE = "alone_in_label"


def pairs_within_labels(rows: Iterator[Row], report: CleaningReport, *, per_text: int, seed: int) -> Iterator[Row]:
    """Yield pairs of texts with the same label, in the order of their first texts.

    Each label's texts are shuffled into a circle, and each text is the anchor of those that follow it: as often anchor
    as positive, and no pair twice.

    Args:
        rows: cleaned rows of one text and its label, without duplicates.
        report: counts the texts that are alone in their label.
        per_text: pairs per anchor, where its label has as many other texts.
        seed: seed of the shuffles.

    Raises:
        CseError: all texts have the same label.
    """
    members: dict[str, list[Row]] = {}
    order = []
    for row in rows:
        assert row.label  # noqa: S101 - cleaning drops rows without one
        order.append(row)
        members.setdefault(row.label, []).append(row)
    if len(members) == 1 and len(order) > 1:
        raise CseError(
            f"{report.source}: one label only ({order[0].label}); pairs within labels need at least 2, so that the "
            "texts of others serve as negatives"
        )
    partners: dict[int | str, list[Row]] = {}
    for label, found in members.items():
        circle = list(found)
        Random(f"cse pairs within labels {seed} {label}").shuffle(circle)
        for place, row in enumerate(circle):
            steps = range(1, min(per_text, len(circle) - 1) + 1)
            partners[row.line] = [circle[(place + step) % len(circle)] for step in steps]
    for row in order:
        if not partners[row.line]:
            report.drop(ALONE, row.line)
        for other in partners[row.line]:
            yield Row(row.line, (row.texts[0], other.texts[0]), group=row.label or "")
