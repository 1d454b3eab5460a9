"""Measures of pairs and triplets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Threshold(NamedTuple):
    """The best F1 and the lowest cosine that counts as a pair there."""

    f1: float
    cosine: float


def average_precision(cosine: np.ndarray, label: np.ndarray) -> float:
    r"""Average precision of pairs ranked by cosine, from 0 to 1: ``sum_t (R_t - R_{t-1}) P_t`` over the thresholds.

    Equal cosines share one threshold.

    Args:
        cosine: of each pair, ``(n,)``.
        label: whether the two mean the same, bool ``(n,)``; at least one does.
    """
    _, hits, taken = _at_thresholds(cosine, label)
    recall = hits / label.sum()
    return float(np.sum(np.diff(recall, prepend=0.0) * hits / taken))


def best_f1(cosine: np.ndarray, label: np.ndarray) -> Threshold:
    """Return the highest F1, from 0 to 1, over all thresholds; of equal ones, that of the highest threshold."""
    thresholds, hits, taken = _at_thresholds(cosine, label)
    f1 = 2 * hits / (taken + label.sum())
    best = int(np.argmax(f1))
    return Threshold(float(f1[best]), float(thresholds[best]))


def triplet_hits(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Return 1 for each triplet whose positive has the higher cosine, else 0 (also for a tie), float64 ``(n,)``."""
    return (positive > negative).astype(np.float64)


def _at_thresholds(cosine: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct cosines, highest first, with the true pairs and all pairs at or above each."""
    order = np.argsort(-cosine, kind="stable")
    falling = cosine[order]
    last = np.flatnonzero(np.append(falling[1:] != falling[:-1], True))
    hits = label[order].cumsum(dtype=np.float64)
    return falling[last], hits[last], (last + 1).astype(np.float64)
