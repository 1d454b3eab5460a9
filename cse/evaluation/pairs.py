"""Measures of pairs and triplets; of pairs also for many resamples and seeds at once, for intervals.

Shapes: R resamples, S seeds, N pairs, C distinct values. A pair counts as often as a resample holds it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Threshold(NamedTuple):
    """The best F1 and the lowest cosine that counts as a pair there."""

    f1: float
    cosine: float


def average_precision(cosine: np.ndarray, label: np.ndarray) -> float:
    """Return the average precision of pairs ranked by cosine, from 0 to 1; equal cosines share one threshold."""
    return float(average_precisions(cosine[None], label.astype(np.float64), np.ones((1, len(cosine)))).item())


def best_f1(cosine: np.ndarray, label: np.ndarray) -> Threshold:
    """Return the highest F1, from 0 to 1, over all thresholds; of equal ones, that of the highest threshold."""
    (f1_C,) = _f1(cosine, label.astype(np.float64), np.ones((1, len(cosine))))
    best = int(np.argmax(f1_C))
    order, ends = _classes(-cosine)
    return Threshold(float(f1_C[best]), float(cosine[order[ends[best]]]))


def triplet_hits(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Return 1 for each triplet whose positive has the higher cosine, else 0 (also for a tie), float64 ``(n,)``."""
    return (positive > negative).astype(np.float64)


def rank_correlations(cosine_SN: Floats, gold_N: Floats, counts_RN: Floats) -> Floats:
    """Return Spearman's correlation by resample and seed, ``(R, S)``; NaN where one side is constant."""
    total_R = counts_RN.sum(axis=1)

    def centred_ranks(values_N: Floats) -> Floats:
        ranks_RN = _ranks(values_N, counts_RN)
        return ranks_RN - ((counts_RN * ranks_RN).sum(axis=1) / total_R)[:, None]

    gold_RN = centred_ranks(gold_N)
    weighted_RN = counts_RN * gold_RN
    gold_R = (weighted_RN * gold_RN).sum(axis=1)
    found_RS = np.empty((len(counts_RN), len(cosine_SN)))
    for seed, cosine_N in enumerate(cosine_SN):
        ranks_RN = centred_ranks(cosine_N)
        scale_R = np.sqrt(gold_R * (counts_RN * ranks_RN**2).sum(axis=1))
        with np.errstate(invalid="ignore"):
            found_RS[:, seed] = (weighted_RN * ranks_RN).sum(axis=1) / scale_R
    return found_RS


def average_precisions(cosine_SN: Floats, gold_N: Floats, counts_RN: Floats) -> Floats:
    """Return scikit-learn's average precision of binary pairs, ``(R, S)``; NaN without a positive pair."""
    values = []
    for cosine_N in cosine_SN:
        found_RC, hits_RC = _upto(cosine_N, gold_N, counts_RN)
        gains_RC = np.diff(hits_RC, prepend=0, axis=1) * hits_RC / np.maximum(found_RC, 1)
        with np.errstate(invalid="ignore"):
            values.append(gains_RC.sum(axis=1) / hits_RC[:, -1])
    return np.stack(values, axis=1)


def best_f1s(cosine_SN: Floats, gold_N: Floats, counts_RN: Floats) -> Floats:
    """Return the largest F1 over all thresholds, ``(R, S)``; NaN without a positive pair."""
    return np.stack([_f1(cosine_N, gold_N, counts_RN).max(axis=1) for cosine_N in cosine_SN], axis=1)


def _f1(cosine_N: Floats, gold_N: Floats, counts_RN: Floats) -> Floats:
    """Return F1 at each distinct cosine, from the largest down, ``(R, C)``; NaN without a positive pair."""
    found_RC, hits_RC = _upto(cosine_N, gold_N, counts_RN)
    most_R1 = hits_RC[:, -1:]
    return 2 * hits_RC / np.where(most_R1 > 0, found_RC + most_R1, np.nan)


def _ranks(values_N: Floats, counts_RN: Floats) -> Floats:
    """Return the rank of each item in each resample, the mean of those that equal values and repetitions take."""
    order, ends = _classes(values_N)
    upto_RC = np.cumsum(counts_RN[:, order], axis=1)[:, ends]  # items up to the end of each class of equal values
    ranks_RC = (np.concatenate([np.zeros((len(upto_RC), 1)), upto_RC[:, :-1]], axis=1) + upto_RC + 1) / 2
    class_N = np.empty(len(order), np.int64)
    class_N[order] = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=-1))
    return ranks_RC[:, class_N]


def _upto(cosine_N: Floats, gold_N: Floats, counts_RN: Floats) -> tuple[Floats, Floats]:
    """Return the pairs and the positive ones among them down to each distinct cosine, ``(R, C)``."""
    order, ends = _classes(-cosine_N)
    found_RC, hits_RC = (np.cumsum(each[:, order], axis=1)[:, ends] for each in (counts_RN, counts_RN * (gold_N > 0)))
    return found_RC, hits_RC


def _classes(values_N: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of rising values, and the last place in it of each class of equal ones."""
    order = np.argsort(values_N, kind="stable")
    return order, np.append(np.flatnonzero(np.diff(values_N[order])), len(order) - 1)
