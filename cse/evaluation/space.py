"""The shape of the space: alignment and uniformity (Wang and Isola 2020), exact.

``alignment = mean ||f(x) - f(x+)||^2`` over positive pairs, ``uniformity = log mean exp(-2 ||f(x) - f(y)||^2)`` over
all pairs of different rows, vectors of unit length. Papers use different pairs and rows without saying so; the setting
is part of the result. The default follows SimCSE's authors: positives with gold above 4, rows of all STS-B splits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from cse.data.tasks.kinds import ScoredPairs
from cse.errors import CseError
from cse.evaluation.measures import Score
from cse.evaluation.vectors import Vectors
from cse.runtime.encode import unit_rows

_BLOCK = 1024  # rows


def score_space(
    vectors: Vectors,
    splits: Sequence[ScoredPairs],
    *,
    threshold: float = 4.0,
    strict: bool = True,
    dedup: bool = False,
) -> Score:
    """Measure given embeddings on the pairs of some splits."""
    first = [text for split in splits for text in split.sentence1]
    second = [text for split in splits for text in split.sentence2]
    gold = np.concatenate([split.score for split in splits])
    positive = gold > threshold if strict else gold >= threshold
    least = f"{'>' if strict else '>='} {threshold:g}"
    if not positive.any():
        raise CseError(f"alignment: no pair has a gold score {least}; lower it")
    texts = [*first, *second]
    aligned = alignment(
        vectors.of([first[i] for i in np.flatnonzero(positive)]),
        vectors.of([second[i] for i in np.flatnonzero(positive)]),
    )
    rows = list(dict.fromkeys(texts)) if dedup else texts
    names, pairs = [split.name for split in splits], int(positive.sum())
    kind = "distinct sentences" if dedup else "sentences"
    return Score(
        {"alignment": aligned, "uniformity": uniformity(vectors.of(rows))},
        f"{' + '.join(names)}, {pairs:,} pairs with gold {least}, {len(rows):,} {kind}",
        {"positives": pairs, "sentences": len(rows), "splits": names, "threshold": threshold, "strict": strict,
         "dedup": dedup},
    )  # fmt: skip


def alignment(a: np.ndarray, b: np.ndarray) -> float:
    """Mean squared distance of pairs of unit vectors; ``a`` and ``b`` are ``(n, d)`` of any length."""
    return float(((_unit(a) - _unit(b)) ** 2).sum(axis=1).mean())


def uniformity(rows: np.ndarray, t: float = 2.0) -> float:
    """Logarithm of the mean of ``exp(-t d^2)`` over the ``n (n - 1) / 2`` pairs of rows ``(n, d)``, in blocks."""
    if len(rows) < 2:
        raise CseError(f"uniformity: needs at least 2 sentences, found {len(rows)}")
    unit_ND = _unit(rows)
    parts = []
    for start in range(0, len(unit_ND), _BLOCK):
        block_BD = unit_ND[start : start + _BLOCK]
        exponent_BN = 2 * t * (block_BD @ unit_ND[start:].T - 1)  # -t d^2 = 2 t (cosine - 1)
        exponent_BN[np.tril_indices(len(block_BD), m=exponent_BN.shape[1])] = -np.inf  # each pair once, no self-pairs
        parts.append(logsumexp(exponent_BN))
    pairs = len(rows) * (len(rows) - 1) / 2
    return float(logsumexp(parts) - np.log(pairs))


def _unit(rows_ND: np.ndarray) -> np.ndarray:
    zero = np.flatnonzero(~rows_ND.any(axis=1))
    if len(zero):
        raise CseError(
            f"uniformity: sentence {zero[0] + 1} of {len(rows_ND)} has a zero vector, which has no direction; leave "
            "sentences without known words out"
        )
    return unit_rows(rows_ND.astype(np.float64))
