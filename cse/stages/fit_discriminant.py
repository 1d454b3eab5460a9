"""Fit a discriminant on the prepared texts and their labels."""

from __future__ import annotations

from collections.abc import Sequence

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from cse.data.store import PreparedData
from cse.evaluation.tasks.labels import same_label_precisions
from cse.model.post.linear import LinearMap, Scatter, fit_discriminant, numbered, scatter_of

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 0.6)
_UNDECIDED = 0.1  # where no fold holds two texts of a label
FOLDS = 5
_HELD_OUT = 2000  # texts of a fold that are ranked, about: the time grows with their square


def labelled_texts(data: PreparedData) -> dict[str, str]:
    """Return the label of each training text; leave out and count texts with several."""
    found = data.labels()
    single = {text: labels[0] for text, labels in found.items() if len(labels) == 1}
    if several := len(found) - len(single):
        click.echo(f"{several:,} of {len(found):,} texts have more than one label and are left out", err=True)
    return single


def fit_labelled(
    vectors: NDArray[np.float32], labels: Sequence[str], shrinkage: float, dimension: int | None
) -> LinearMap:
    """Fit a discriminant to vectors ``(n, D)`` of labelled texts, and say so if it leaves one dimension."""
    fitted = fit_discriminant(vectors, labels, shrinkage, dimension)
    if fitted.dimension == 1:
        click.echo("one dimension is left, in which a cosine is 1 or -1: compare texts of more labels", err=True)
    return fitted


def decide_shrinkage(vectors: NDArray[np.float32], labels: Sequence[str], dimension: int | None) -> float:
    """Return the shrinkage that ranks held-out texts best, and say why it was chosen."""
    scores = choose_shrinkage(vectors, labels, dimension)
    shrinkage = max(scores, key=lambda one: scores[one]) if scores else _UNDECIDED
    tried = ", ".join(f"{one:g} {100 * score:.2f}" for one, score in scores.items())
    why = f"MAP of held-out texts: {tried}" if scores else "too few texts of a label to hold any out"
    click.echo(f"post.shrinkage {shrinkage:g} ({why})", err=True)
    return shrinkage


def choose_shrinkage(vectors: NDArray[np.float32], labels: Sequence[str], dimension: int | None) -> dict[float, float]:
    """Return the mean average precision, from 0 to 1, that each of ``SHRINKAGES`` gives to texts not fitted on.

    Each of five folds of even labels is held out in turn, and its texts search it for the others of their label. Texts
    are held out from the discriminant alone: where the encoder was trained on the same texts, their vectors keep
    to their labels more than those of new texts will, and the choice shrinks too little.

    Args:
        vectors: ``(n, D)``, one row per distinct text, not normalised.
        labels: of each row.
        dimension: number of leading directions to keep; None: all.

    Returns:
        The scores by shrinkage, smallest first; nothing where no fold has two texts of a label.
    """
    label = numbered(labels)
    whole = scatter_of(vectors, label)
    found: dict[float, list[np.ndarray]] = {shrinkage: [] for shrinkage in SHRINKAGES}
    for fold in range(FOLDS):
        held = rows_of_fold(label, fold)
        rest = whole - Scatter.of(vectors[held], label[held], len(whole.count_C), whole.origin_D)
        ranked = few_of_each(held, label)
        if not len(held) or rest.fault:
            continue
        for shrinkage, precisions in found.items():
            projected = normalize(rest.fit(shrinkage, dimension)(torch.from_numpy(vectors[ranked]))).numpy()
            precisions.append(same_label_precisions(projected, label[ranked]))
    scores = {shrinkage: np.concatenate(parts) for shrinkage, parts in found.items() if parts}
    return {shrinkage: float(values.mean()) for shrinkage, values in scores.items() if len(values)}


def rows_of_fold(label: NDArray[np.int64], fold: int) -> NDArray[np.int64]:
    """Return the rows of a fold in the order of their labels; by twos, so that a text finds another of its label."""
    order = np.argsort(label, kind="stable")
    return np.asarray(order[np.arange(len(order)) // 2 % FOLDS == fold])


def few_of_each(rows: NDArray[np.int64], label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return some rows of each label, at least two if there are two; ``rows`` are in the order of their labels."""
    count = max(2, _HELD_OUT // (label.max() + 1))
    inside = label[rows]
    place = np.arange(len(rows)) - np.searchsorted(inside, inside)
    return np.asarray(rows[place < count])
