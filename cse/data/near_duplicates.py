"""Near-duplicates: texts that share most of their character 5-grams (MinHash with LSH).

Sentences are short: one changed word in ten leaves less than half of the word 3-grams, but two thirds of the character
5-grams. LSH proposes earlier texts; the exact Jaccard index decides, so none is dropped below the threshold. A text at
the threshold is found with a probability of at least 99 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_CHARACTERS = 5
_HASHES = 128
_FOUND = 0.99  # probability that LSH proposes a text at the threshold

NEAR_DUPLICATE, NEAR_EVALUATION = "near_duplicate", "near_evaluation"


class NearDuplicates:
    """What was kept so far, and the held-out sentences.

    Args:
        threshold: Jaccard index from which two texts are near-duplicates.
    """

    def __init__(self, threshold: float, held_out: Iterable[str] = ()) -> None:
        self.kept, self.held_out = _Index(threshold), _Index(threshold)
        for sentence in dict.fromkeys(held_out):
            self.held_out.add(self.held_out.signed(sentence))

    def fault(self, texts: Sequence[str]) -> str | None:
        """Return why a row is to be dropped, or None; then later rows are compared with it.

        A row is compared with earlier rows as a whole, and with held-out sentences text by text.
        """
        row = self.kept.signed("\n".join(texts))
        if self.held_out.texts:
            each = [row] if len(texts) == 1 else [self.kept.signed(text) for text in texts]
            if any(map(self.held_out.holds, each)):
                return NEAR_EVALUATION
        if self.kept.holds(row):
            return NEAR_DUPLICATE
        self.kept.add(row)
        return None


def shingles(text: str) -> set[str]:
    """Return the character 5-grams of a text without case and repeated white space; a shorter text is its own."""
    text = " ".join(text.casefold().split())
    return {text[i : i + _CHARACTERS] for i in range(max(len(text) - _CHARACTERS + 1, 1))}


def jaccard(one: set[str], other: set[str]) -> float:
    """Return the share of 5-grams that two texts have in common."""
    return len(one & other) / len(one | other)


def bands(threshold: float) -> tuple[int, int]:
    """Return the bands (at least 2) and the hashes per band: as many as still propose what is at the threshold."""
    fits = [r for r in range(1, _HASHES // 2 + 1) if 1 - (1 - threshold**r) ** (_HASHES // r) >= _FOUND]
    per_band = max(fits, default=1)
    return _HASHES // per_band, per_band


class _Index:
    def __init__(self, threshold: float) -> None:
        from datasketch import MinHash, MinHashLSH

        self.threshold = threshold
        self.lsh = MinHashLSH(threshold=threshold, num_perm=_HASHES, params=bands(threshold))
        self.blank = MinHash(num_perm=_HASHES, seed=1)
        self.texts: list[str] = []

    def signed(self, text: str) -> tuple[str, Any]:
        """Return a text with its MinHash."""
        made = self.blank.copy()
        made.update_batch([gram.encode("utf-8") for gram in sorted(shingles(text))])
        return text, made

    def add(self, signed: tuple[str, Any]) -> None:
        self.lsh.insert(len(self.texts), signed[1], check_duplication=False)
        self.texts.append(signed[0])

    def holds(self, signed: tuple[str, Any]) -> bool:
        """Return whether a text was added that reaches the threshold."""
        if not self.texts:
            return False
        own = shingles(signed[0])
        return any(jaccard(own, shingles(self.texts[number])) >= self.threshold for number in self.lsh.query(signed[1]))
