"""Measures of pairs and triplets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cse.evaluation import weighted


class Threshold(NamedTuple):
    """The best F1 and the lowest cosine that counts as a pair there."""

    f1: float
    cosine: float


def average_precision(cosine: np.ndarray, label: np.ndarray) -> float:
    """Return the average precision of pairs ranked by cosine, from 0 to 1; equal cosines share one threshold.

    Args:
        cosine: of each pair, ``(n,)``.
        label: whether the two mean the same, bool ``(n,)``; at least one does.
    """
    return float(weighted.average_precision(cosine[None], label.astype(np.float64), np.ones((1, len(cosine)))).item())


def best_f1(cosine: np.ndarray, label: np.ndarray) -> Threshold:
    """Return the highest F1, from 0 to 1, over all thresholds; of equal ones, that of the highest threshold."""
    order = np.argsort(-cosine, kind="stable")
    falling = cosine[order]
    last = np.flatnonzero(np.append(falling[1:] != falling[:-1], True))
    f1 = 2 * label[order].cumsum(dtype=np.float64)[last] / (last + 1 + label.sum())
    best = int(np.argmax(f1))
    return Threshold(float(f1[best]), float(falling[last[best]]))


def triplet_hits(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Return 1 for each triplet whose positive has the higher cosine, else 0 (also for a tie), float64 ``(n,)``."""
    return (positive > negative).astype(np.float64)
