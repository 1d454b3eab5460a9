"""Distinct texts of mixed length, made from the generated sample: anybody can make the same ones."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

from cse.data.sample import sample_rows

COUNT, SEED, LONGEST = 20_000, 1, 100
DISTRIBUTION = f"words per text: log-uniform from 1 to {LONGEST}, so that each doubling of the length is as frequent"
_BOUNDS = (1, 2, 4, 8, 16, 32, 64, LONGEST + 1)


def mixed_texts(count: int = COUNT, seed: int = SEED) -> list[str]:
    """Return ``count`` distinct texts of 1 to 100 words, the same on every machine.

    A text is a stretch of the sample's sentences joined into one long text; where it starts and how long it is are
    drawn, and drawn again if the text was there before.
    """
    rows = sample_rows("sentences", max(count // 2, 1000), seed)
    words = " ".join(text for row in rows for text in row).split()
    rng = Random(f"cse mixed texts {seed}")
    found: dict[str, None] = {}
    while len(found) < count:
        length = min(int((LONGEST + 1) ** rng.random()), LONGEST)
        start = int(rng.random() * (len(words) - length))
        found[" ".join(words[start : start + length])] = None
    return list(found)


def histogram(texts: list[str]) -> dict[str, int]:
    """Return the number of texts by number of words, in ranges that double."""
    counts = Counter(len(text.split()) for text in texts)
    ranges = [range(begin, end) for begin, end in pairwise(_BOUNDS)]
    names = [str(words[0]) if len(words) == 1 else f"{words[0]}-{words[-1]}" for words in ranges]
    return {name: sum(counts[number] for number in words) for name, words in zip(names, ranges, strict=True)}
