"""Measures of labelled texts: neighbours, class means.

Test and reference rows are unit vectors, float32 ``(t, D)`` and ``(n, D)``; labels are whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cse.evaluation.retrieval import cosine_blocks
from cse.runtime.encode import best_places, unit_rows

NEIGHBOURS = 5
_CELLS = 1 << 20  # of a block that is sorted, which takes twenty times its memory


def neighbour_labels(test_TD: np.ndarray, reference_ND: np.ndarray, reference_label: np.ndarray) -> np.ndarray:
    """Return the label for which the nearest reference rows of each test text vote, ``(t,)``.

    The ``NEIGHBOURS`` rows with the highest cosine vote; of labels with equal votes, the one with the nearest row wins.
    """
    found = np.empty(len(test_TD), reference_label.dtype)
    for start, cosine_BN in cosine_blocks(test_TD, reference_ND):
        for row, cosine_N in enumerate(cosine_BN, start):
            nearest = reference_label[best_places(cosine_N, NEIGHBOURS)]
            voted, first, votes = np.unique(nearest, return_index=True, return_counts=True)
            found[row] = voted[np.lexsort((first, -votes))[0]]
    return found


def same_label_precisions(test_TD: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return the average precision of each test text's search for the others of its label, among all other test texts.

    ``AP = mean over the relevant places of (relevant ones up to there) / place``, float64. Texts alone in their label
    are left out. Of equal cosines, the earlier text ranks higher.
    """
    found = np.empty(len(test_TD))
    for start, cosine_BT in cosine_blocks(test_TD, test_TD, _CELLS):
        own = np.arange(len(cosine_BT)), np.arange(start, start + len(cosine_BT))
        cosine_BT[own] = np.inf  # first, and then dropped
        order_BT = np.argsort(-cosine_BT, axis=1, kind="stable")[:, 1:]
        relevant_BT = label[order_BT] == label[own[1]][:, None]
        precision_BT = relevant_BT.cumsum(axis=1, dtype=np.float64) / np.arange(1, relevant_BT.shape[1] + 1)
        with np.errstate(invalid="ignore"):  # 0 / 0 of a text alone in its label
            found[own[1]] = (precision_BT * relevant_BT).sum(axis=1) / relevant_BT.sum(axis=1)
    return found[np.bincount(label)[label] > 1]


def class_mean_labels(test_TD: np.ndarray, reference_ND: np.ndarray, reference_label: np.ndarray) -> np.ndarray:
    """Return the label of each test text's nearest class mean by cosine, ``(t,)``; of equal cosines, the first."""
    classes, mean_CD = class_means(reference_ND, reference_label)
    return classes[(test_TD.astype(np.float64) @ mean_CD.T).argmax(axis=1)]


def class_means(vector_ND: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels in order ``(c,)``, and the mean of each one's unit vectors, unit length, float64 ``(c, D)``."""
    classes, place_N = np.unique(label, return_inverse=True)
    mean_CD = np.zeros((len(classes), vector_ND.shape[1]))
    np.add.at(mean_CD, place_N, vector_ND)
    return classes, unit_rows(mean_CD)


def numbered(*columns: Sequence[str]) -> list[np.ndarray]:
    """Return labels as their places among all of them in alphabetical order, the same in every column."""
    places = {label: place for place, label in enumerate(known_labels(*columns))}
    return [np.array([places[label] for label in column], np.int64) for column in columns]


def known_labels(*columns: Sequence[str]) -> list[str]:
    """Return the labels in some columns in alphabetical order: what the numbers of ``numbered`` stand for."""
    return sorted({label for column in columns for label in column})
