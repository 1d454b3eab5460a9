"""Read scored pairs from a user's file with two columns of sentences and one of gold scores."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from cse.data.checks import column_hint, no_rows, required_text
from cse.data.clean import MOST_CHARACTERS
from cse.data.readers import check_exists
from cse.data.tables import open_table
from cse.data.tasks.kinds import ScoredPairs
from cse.errors import CseError

Scored = tuple[str, str, float]

USUAL_PAIR_COLUMNS = (
    ("sentence1", "sentence_1", "sentence_A", "sentence_a", "sent0", "sent1", "text1", "s1"),
    ("sentence2", "sentence_2", "sentence_B", "sentence_b", "sent1", "sent2", "text2", "s2"),
    ("score", "similarity", "similarity_score", "relatedness_score", "gold", "label"),
)


# float() would also accept 0_1 and digits of any script
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


def make_scored(name: str, rows: list[Scored], subsets: list[str]) -> ScoredPairs:
    """Turn rows ``(sentence1, sentence2, score)`` into ``ScoredPairs``."""
    return ScoredPairs(
        name=name,
        sentence1=[row[0] for row in rows],
        sentence2=[row[1] for row in rows],
        score=np.array([row[2] for row in rows], dtype=np.float64),
        subset=subsets,
    )


def check_score(path: Path, number: int, value: Any, score_range: tuple[float, float], advice: str) -> float:
    """Return a gold score as a number; raise ``CseError`` with the line if it is not a number in range."""
    lowest, highest = score_range
    readable = _NUMBER.fullmatch(value) if isinstance(value, str) else not isinstance(value, bool)
    try:
        score = float(value) if readable else math.nan
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not lowest <= score <= highest:
        raise CseError(f"{path}:{number}: score {value!r} is not a number from {lowest:g} to {highest:g}; {advice}")
    return score


def read_scored_file(
    path: Path, encoding: str = "utf-8", score_range: tuple[float, float] = (0.0, 5.0), name: str | None = None
) -> ScoredPairs:
    """Read scored pairs from a csv, tsv, jsonl or parquet file with columns sentence1, sentence2, score (or synonyms).

    Args:
        path: the file.
        encoding: encoding of text files.
        score_range: minimum and maximum score.
        name: name of the task; ``None``: the file name without its suffix.

    Raises:
        CseError: a missing file or column, an empty file, a missing sentence, a score that is not a number in range, or
            two scores for one pair.
    """
    check_exists(path, "the setting that names it")
    table = open_table(path, encoding)
    names: list[str] = []
    for usual in USUAL_PAIR_COLUMNS:
        known = [column for column in usual if column in table.columns and column not in names]
        if not known:
            hint = column_hint(usual[0], table.columns)
            raise CseError(f"{path}: no column {usual[0]!r}{hint}; name them sentence1, sentence2, score")
        names.append(known[0])
    rows: list[Scored] = []
    seen: dict[frozenset[str], tuple[int, float]] = {}
    for number, values in table.pick(names, 2):
        if not values:
            continue
        for column, value in zip(names[:2], values[:2], strict=True):
            text = required_text(value, column, f"{path}:{number}", blank=False)
            if len(text) > MOST_CHARACTERS:
                raise CseError(f"{path}:{number}: {len(text):,} characters in column {column!r}; split the sentence")
        score = check_score(path, number, values[2], score_range, "fix it or set data.score_range")
        row = (values[0].strip(), values[1].strip(), score)
        line, earlier = seen.setdefault(frozenset(row[:2]), (number, score))
        if earlier != score:
            raise CseError(
                f"{path}:{number}: score {score:g} for the pair that has {earlier:g} in line {line}; keep one of them"
            )
        rows.append(row)
    if not rows:
        raise no_rows(str(path))
    name = name or path.stem
    return make_scored(name, rows, [name] * len(rows))
