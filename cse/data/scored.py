"""Scored sentence pairs, the data of the similarity tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ScoredPairs:
    """Sentence pairs with gold similarities: one task of one or more subsets.

    Attributes:
        name: name of the task, e.g. ``STS12`` or ``STS-B``.
        sentence1: ``n`` first sentences.
        sentence2: ``n`` second sentences.
        score: gold similarity, float64 ``(n,)``; higher is more similar.
        subset: name of each pair's subset (``MSRpar``, ``headlines``, ...), ``n`` of them.
    """

    name: str
    sentence1: list[str]
    sentence2: list[str]
    score: np.ndarray
    subset: list[str]

    def __len__(self) -> int:
        return len(self.score)
