"""A dev task of the same making as the training rows, where the user has no better one.

A share of the labels' texts, documents or pairs is held out before training. Held-out texts with their labels are real
examples of the task. Held-out pairs (title and body, question and answer) are a proxy: they say how well a text finds
its other half, which is not what anybody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import numpy as np

from cse.data.clean import CleaningReport, Drop, overlap_key, overlap_keys
from cse.data.readers import Row
from cse.data.tasks.kinds import HELD_OUT, PROXY, LabelledTexts, Retrieval, Task, Triplets
from cse.errors import CseError

OVERLAP = "held_out_overlap"
LEAST, MOST = 2, 1000  # rows held out
_LEAST_OF_LABEL = 4  # texts of a label: two held out, for a search among them, and two left for a pair
_NAME = "held-out rows"


class HoldOut:
    """Rows held out of a stream; ``task`` is complete once the stream was read.

    Args:
        share: of the rows, from 0 to 1; at most ``MOST`` rows.
        seed: seed of the draw.
        report: counts the training rows that hold a held-out text.
        after: makes the training rows out of the rows that are left; None: they are the rows.
    """

    def __init__(
        self, share: float, seed: int, report: CleaningReport, after: Callable[[Iterator[Row]], Iterator[Row]] | None
    ) -> None:
        self.share, self.seed, self.report, self.after = share, seed, report, after
        self.held: list[Row] = []
        self.rest: list[Row] = []

    def __call__(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield the training rows.

        Raises:
            CseError: too few rows to hold any out.
        """
        everything = list(rows)
        held = self._labelled(everything) if everything and everything[0].label else self._grouped(everything)
        if len(held) < LEAST or len(held) == len(everything):
            raise CseError(
                f"data.hold_out: {len(held)} of {len(everything)} rows of {self.report.source} would be held out; "
                "prepare more rows, choose another share, or set it to 0 and name a dev task in data.dev_path"
            )
        self.held = [everything[number] for number in sorted(held)]
        texts = {text for row in self.held for text in row.texts}
        for number, row in enumerate(everything):
            if number in held:
                continue
            if texts.isdisjoint(row.texts):
                self.rest.append(row)
            else:
                self.report.drop(OVERLAP, row.line)
        yield from self.rest if self.after is None else self.after(iter(self.rest))

    def task(self) -> Task:
        """Return the held-out rows as a dev task."""
        columns = [[text or "" for text in column] for column in zip(*(row.texts for row in self.held), strict=True)]
        if self.held[0].label:
            test, reference = ([row.label or "" for row in rows] for rows in (self.held, self.rest))
            return LabelledTexts(
                _NAME, [row.texts[0] or "" for row in self.rest], reference, columns[0], test, HELD_OUT
            )
        if len(columns) == 3:
            return Triplets(_NAME + PROXY, *columns)
        queries, documents = (list(dict.fromkeys(column)) for column in columns)
        query_of, document_of = ({text: place for place, text in enumerate(texts)} for texts in (queries, documents))
        judged = sorted({(query_of[one], document_of[other]) for one, other in zip(*columns, strict=True)})
        query, document = np.array(judged, np.int64).T
        return Retrieval(_NAME + PROXY, queries, documents, query, document, np.ones(len(judged), np.int64), _NAME)

    def _labelled(self, rows: list[Row]) -> set[int]:
        """Return the share of each label that has texts enough, at least two texts."""
        members: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            members.setdefault(row.label or "", []).append(number)
        large = {label: found for label, found in members.items() if len(found) >= _LEAST_OF_LABEL}
        share = min(self.share, MOST / max(len(rows), 1))
        held: set[int] = set()
        for label, found in large.items():
            count = min(max(round(share * len(found)), 2), len(found) - 2)
            held |= set(Random(f"cse hold out {self.seed} {label}").sample(found, count))
        return held

    def _grouped(self, rows: list[Row]) -> set[int]:
        """Return the rows of some groups, or some rows where there are no groups, until there are enough."""
        members: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            members.setdefault(row.group or f"row {number}", []).append(number)
        groups = list(members.values())
        Random(f"cse hold out {self.seed}").shuffle(groups)
        wanted = min(round(self.share * len(rows)), MOST)
        held: set[int] = set()
        for found in groups:
            if len(held) >= wanted:
                break
            held |= set(found)
        return held


def without(
    main: HoldOut, report: CleaningReport, after: Callable[[Iterator[Row]], Iterator[Row]] | None
) -> Callable[[Iterator[Row]], Iterator[Row]]:
    """Return what drops and counts the rows of a further source that hold a text held out of the main one.

    Args:
        main: the main source's held-out rows, complete.
        report: of the further source.
        after: makes its training rows out of the rows that are left; None: they are the rows.
    """
    held = overlap_keys(text or "" for row in main.held for text in row.texts)
    report.dropped.setdefault(OVERLAP, Drop())

    def arrange(rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if any(overlap_key(text or "") in held for text in row.texts):
                report.drop(OVERLAP, row.line)
            else:
                yield row

    return arrange if after is None else lambda rows: after(arrange(rows))
