"""Scored sentence pairs: what the similarity tasks are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ScoredPairs:
    """Sentence pairs with a gold similarity each; one task, made of one or more subsets.

    Attributes:
        name: the task, e.g. ``STS12`` or ``STS-B``.
        sentence1: first sentences, ``n`` of them.
        sentence2: second sentences, ``n`` of them.
        score: gold similarity, float64 ``(n,)``, higher is more alike.
        subset: name of the subset of each pair, ``n`` of them (``MSRpar``, ``headlines``, ...).
    """

    name: str
    sentence1: list[str]
    sentence2: list[str]
    score: np.ndarray
    subset: list[str]

    def __len__(self) -> int:
        return len(self.score)
