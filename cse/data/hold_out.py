"""Tasks of the same making as the training rows, where the user has no better one.

A share of the labels' texts, documents or pairs is held out before training: one part selects checkpoints, another is
measured at the end. Held-out texts with their labels are real examples of the task. Held-out pairs (title and body,
question and answer) are a proxy: they say how well a text finds its other half, which is not what anybody asked for.

Rows are drawn by a hash of their first text, or of their document's, whatever its case and punctuation: texts that a
smaller file held out stay held out when rows are added. No text is in two parts, or in a part and the training rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np

from cse.data.clean import CleaningReport, text_key, trimmed
from cse.data.shape import Row
from cse.data.tasks.kinds import HELD_OUT, PROXY, LabelledTexts, Retrieval, Task, Triplets, own_documents
from cse.errors import CseError

OVERLAP = "held_out_overlap"
LEAST = 2  # rows of a part
MOST = 1000  # rows of a part; a share that gives more is halved, so that a larger file holds out fewer, not other rows


class HoldOut:
    """Rows held out of a stream; ``tasks`` are complete once the stream was read.

    Args:
        share: about this much of the rows for each part, from 0 to 1; halved until it gives at most ``MOST`` rows.
        report: counts the training rows that hold a held-out text.
        trained: how many of the parts, the first ones, are drawn and trained on all the same.
    """

    def __init__(self, share: float, seed: int, report: CleaningReport, *, parts: int, trained: int) -> None:
        self.share, self.seed, self.report, self.trained = share, seed, report, trained
        self.held: list[list[Row]] = [[] for _ in range(parts)]
        self.rest: list[Row] = []
        self.keys: set[bytes] = set()  # of all texts held out

    def __call__(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield the training rows."""
        everything = list(rows)
        part_of = [None if part in range(self.trained) else part for part in self._drawn(everything)]
        parts: list[list[Row]] = [[] for _ in self.held]
        for number, part in enumerate(parts):
            inside = [row for row, drawn in zip(everything, part_of, strict=True) if drawn == number]
            part += self.apart(inside, self.report)
            self.keys.update(text_key(text) for row in part for text in row.texts)
        held = len(everything) - part_of.count(None)
        if min(map(len, parts[self.trained :]), default=LEAST) < LEAST or held == len(everything):
            found = f"data.hold_out: {held} of {len(everything)} rows of {self.report.source} would be held out"
            if everything and everything[0].label:
                raise CseError(
                    f"{found}: of each label {LEAST} texts for each of {len(parts)} parts and {LEAST} to train on, so "
                    f"{LEAST * (len(parts) + 1)} or more; add texts, or name those that measure in data.task_path "
                    "(`cse adapt`: a folder with train.* and test.*)"
                )
            raise CseError(
                f"{found}; prepare more rows, choose another share, or set it to 0 and name a dev task in data.dev_path"
            )
        self.held = parts
        left = (row for row, drawn in zip(everything, part_of, strict=True) if drawn is None)
        self.rest = list(self.apart(left, self.report))
        yield from self.rest

    def apart(self, rows: Iterable[Row], report: CleaningReport) -> Iterator[Row]:
        """Yield the rows without a held-out text; drop and count the others."""
        for row in rows:
            if any(text_key(text) in self.keys for text in row.texts):
                report.drop(OVERLAP, row.line)
            else:
                yield row

    def tasks(self) -> list[Task]:
        """Return each part of the held-out rows as a task; none of those that were trained on."""
        return [self._task(held) for held in self.held[self.trained :]]

    def _task(self, held: list[Row]) -> Task:
        name = f"{Path(self.report.source).stem} held out"
        columns = [[trimmed(text) for text in column] for column in zip(*(row.texts for row in held), strict=True)]
        if held[0].label:
            test, reference = ([row.label or "" for row in rows] for rows in (held, self.rest))
            texts = [trimmed(row.texts[0]) for row in self.rest]
            return LabelledTexts(name, texts, reference, columns[0], test, HELD_OUT)
        if len(columns) == 3:
            return Triplets(name + PROXY, *columns)
        queries, documents = (list(dict.fromkeys(column)) for column in columns)
        query_of, document_of = ({text: place for place, text in enumerate(texts)} for texts in (queries, documents))
        judged = sorted({(query_of[one], document_of[other]) for one, other in zip(*columns, strict=True)})
        query, document = np.array(judged, np.int64).T
        places = {text_key(text): place for place, text in enumerate(documents)}
        own = own_documents(places.get(text_key(text)) for text in queries)
        return Retrieval(name + PROXY, queries, documents, query, document, np.ones(len(judged), np.int64), own, name)

    def _drawn(self, rows: list[Row]) -> list[int | None]:
        """Return the part that each row is drawn for, None for a training row.

        Of each label about the share: at least two texts for a part, so that one can find the other, and two to train
        on; a label with fewer texts keeps them. Rows of one document stay together.
        """
        share = self.share
        while share * len(rows) > MOST:
            share /= 2
        first: dict[str, bytes] = {}  # of each document
        keys = [first.setdefault(row.group or f"row {n}", text_key(row.texts[0])) for n, row in enumerate(rows)]
        sizes: dict[str, dict[bytes, int]] = {}  # by label
        for key, row in zip(keys, rows, strict=True):
            inside = sizes.setdefault(row.label or "", {})
            inside[key] = inside.get(key, 0) + 1
        drawn: dict[bytes, int] = {}
        for inside in sizes.values():
            draw_parts(inside, f"cse hold out {self.seed}", share, len(self.held), drawn)
        return [drawn.get(key) for key in keys]


def place_of(salt: str, key: bytes) -> float:
    """Return the place of a key between 0 and 1, which depends on nothing but the salt and the key."""
    return int.from_bytes(blake2b(salt.encode("utf-8") + b"\0" + key, digest_size=8).digest(), "big") / 2**64


def draw_parts(sizes: Mapping[bytes, int], salt: str, share: float, parts: int, drawn: dict[bytes, int]) -> None:
    """Draw about a share of some rows for each of several parts; add the part of each drawn key to ``drawn``.

    A key is drawn where its own place says so, whatever else there is. Among few rows that can miss the share by far: a
    part with less than half of it, or fewer than two rows, also takes the next keys, and one with half as much again
    takes no more. Two rows stay undrawn; nothing is drawn of rows too few for that.

    Args:
        sizes: rows of each key.
        share: of the rows for each part, from 0 to 1.
        drawn: parts of the keys drawn earlier, of which none is drawn again.
    """
    rows = sum(sizes.values())
    most = (rows - LEAST) // parts
    if most < LEAST:
        return
    least = min(max(round(share * rows / 2), LEAST), most)
    most = min(most, max(least, round(1.5 * share * rows)))
    place = {key: place_of(salt, key) for key in sizes}
    home = {key: int(parts * place_of(f"{salt} part", key)) for key in sizes}
    for part in range(parts):
        taken = sum(size for key, size in sizes.items() if drawn.get(key) == part)
        order = {key: (home[key] != part, place[key]) for key in sizes if key not in drawn}
        for key in sorted(order, key=order.__getitem__):
            wanted = home[key] == part and place[key] < share * parts
            if taken >= most or (not wanted and taken >= least):
                break
            drawn[key] = part
            taken += sizes[key]
