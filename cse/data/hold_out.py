"""Tasks of the same making as the training rows, where the user has no better one.

A share of the labels' texts, documents or pairs is held out before training: one part selects checkpoints, another is
measured at the end. Held-out texts with their labels are real examples of the task. Held-out pairs (title and body,
question and answer) are a proxy: they say how well a text finds its other half, which is not what anybody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np

from cse.data.clean import CleaningReport, Drop, overlap_key, overlap_keys
from cse.data.readers import Row
from cse.data.tasks.kinds import HELD_OUT, PROXY, LabelledTexts, Retrieval, Task, Triplets
from cse.errors import CseError

OVERLAP = "held_out_overlap"
LEAST, MOST = 2, 1000  # rows of a part


class HoldOut:
    """Rows held out of a stream; ``tasks`` are complete once the stream was read.

    Args:
        share: of the rows for each part, from 0 to 1; at most ``MOST`` rows.
        seed: seed of the draw.
        report: counts the training rows that hold a held-out text.
        after: makes the training rows out of the rows that are left; None: they are the rows.
        parts: how many tasks to hold out.
    """

    def __init__(
        self,
        share: float,
        seed: int,
        report: CleaningReport,
        after: Callable[[Iterator[Row]], Iterator[Row]] | None,
        parts: int = 1,
    ) -> None:
        self.share, self.seed, self.report, self.after = share, seed, report, after
        self.held: list[list[Row]] = [[] for _ in range(parts)]
        self.rest: list[Row] = []

    def __call__(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield the training rows.

        Raises:
            CseError: too few rows to hold any out.
        """
        everything = list(rows)
        parts = self._labelled(everything) if everything and everything[0].label else self._grouped(everything)
        held = set().union(*parts)
        if min(map(len, parts)) < LEAST or len(held) == len(everything):
            raise CseError(
                f"data.hold_out: {len(held)} of {len(everything)} rows of {self.report.source} would be held out; "
                "prepare more rows, choose another share, or set it to 0 and name a dev task in data.dev_path"
            )
        self.held = [[everything[number] for number in sorted(part)] for part in parts]
        texts = {text for part in self.held for row in part for text in row.texts}
        for number, row in enumerate(everything):
            if number in held:
                continue
            if texts.isdisjoint(row.texts):
                self.rest.append(row)
            else:
                self.report.drop(OVERLAP, row.line)
        yield from self.rest if self.after is None else self.after(iter(self.rest))

    def tasks(self) -> list[Task]:
        """Return each part of the held-out rows as a task."""
        return [self._task(held) for held in self.held]

    def _task(self, held: list[Row]) -> Task:
        name = f"{Path(self.report.source).stem} held out"
        columns = [[text or "" for text in column] for column in zip(*(row.texts for row in held), strict=True)]
        if held[0].label:
            test, reference = ([row.label or "" for row in rows] for rows in (held, self.rest))
            texts = [row.texts[0] or "" for row in self.rest]
            return LabelledTexts(name, texts, reference, columns[0], test, HELD_OUT)
        if len(columns) == 3:
            return Triplets(name + PROXY, *columns)
        queries, documents = (list(dict.fromkeys(column)) for column in columns)
        query_of, document_of = ({text: place for place, text in enumerate(texts)} for texts in (queries, documents))
        judged = sorted({(query_of[one], document_of[other]) for one, other in zip(*columns, strict=True)})
        query, document = np.array(judged, np.int64).T
        return Retrieval(name + PROXY, queries, documents, query, document, np.ones(len(judged), np.int64), name)

    def _labelled(self, rows: list[Row]) -> list[set[int]]:
        """Return for each part the share of each label: at least two texts, so that one can find the other.

        A label keeps two texts to train on, or all where it has fewer than that asks for.
        """
        members: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            members.setdefault(row.label or "", []).append(number)
        parts: list[set[int]] = [set() for _ in self.held]
        share = min(self.share, MOST / max(len(rows), 1))
        for label, found in members.items():
            most = (len(found) - 2) // len(parts)
            if most < 2:
                continue
            count = min(max(round(share * len(found)), 2), most)
            drawn = Random(f"cse hold out {self.seed} {label}").sample(found, count * len(parts))
            for place, part in enumerate(parts):
                part |= set(drawn[place * count : (place + 1) * count])
        return parts

    def _grouped(self, rows: list[Row]) -> list[set[int]]:
        """Return for each part the rows of some groups, or some rows where there are no groups."""
        members: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            members.setdefault(row.group or f"row {number}", []).append(number)
        groups = list(members.values())
        Random(f"cse hold out {self.seed}").shuffle(groups)
        wanted = min(round(self.share * len(rows)), MOST)
        parts: list[set[int]] = [set() for _ in self.held]
        remaining = iter(groups)
        for part in parts:
            while len(part) < wanted and (found := next(remaining, None)) is not None:
                part |= set(found)
        return parts


def without(
    main: HoldOut, report: CleaningReport, after: Callable[[Iterator[Row]], Iterator[Row]] | None
) -> Callable[[Iterator[Row]], Iterator[Row]]:
    """Return what drops and counts the rows of a further source that hold a text held out of the main one.

    Args:
        main: the main source's held-out rows, complete.
        report: of the further source.
        after: makes its training rows out of the rows that are left; None: they are the rows.
    """
    held = overlap_keys(text or "" for part in main.held for row in part for text in row.texts)
    report.dropped.setdefault(OVERLAP, Drop())

    def arrange(rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if any(overlap_key(text or "") in held for text in row.texts):
                report.drop(OVERLAP, row.line)
            else:
                yield row

    return arrange if after is None else lambda rows: after(arrange(rows))
