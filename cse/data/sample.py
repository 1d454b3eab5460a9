"""The sample that comes with the package: training rows and scored pairs, so that everything runs without a download.

A sentence says who does what where and when. A hard negative denies its anchor or turns the action around; a pair
has score 5 if it is one meaning in other words, and less the more it differs. The column ``kind`` says in what.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np

from cse.data.tasks.kinds import ScoredPairs

_FOLDER = Path(__file__).with_name("sample_rows")
_WIDTHS = {"sentences": 1, "pairs": 2, "triplets": 3}
SAMPLE = "sample"


def sample_rows(view: str) -> Iterator[tuple[str, ...]]:
    """Yield the training rows of a view: 3,000 of distinct first sentences, or as many with an NLI label."""
    if view == "labelled":
        yield from _rows("labelled")
    else:
        yield from (row[: _WIDTHS[view]] for row in _rows("triplets"))


def sample_pairs(part: Literal["dev", "test"]) -> ScoredPairs:
    """Return the scored pairs that select checkpoints (500) or measure them (1,000)."""
    first, second, score = (list(map(itemgetter(place), _rows(part))) for place in range(3))
    name = SAMPLE if part == "test" else f"{SAMPLE}-{part}"
    return ScoredPairs(name, first, second, np.array(score, dtype=np.float64))


def _rows(name: str) -> Iterator[tuple[str, ...]]:
    with (_FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        next(lines)  # the header
        yield from map(tuple, lines)
