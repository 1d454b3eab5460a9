"""Train a linear head on the vectors of labelled texts: a discriminant, moved on by a contrastive loss.

The encoder runs once; a step multiplies matrices of a batch of vectors, so that a pass over 10,000 texts takes under a
second. How many passes there are is chosen on held-out texts; none is the discriminant itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from tqdm import trange

from cse.errors import CseError
from cse.evaluation.tasks.labels import same_label_precisions
from cse.losses.supervised_contrastive import supervised_contrastive
from cse.model.post.linear import LinearMap, fit_discriminant, numbered
from cse.stages.fit_discriminant import few_of_each, fit_labelled, rows_of_fold

PASSES = (0, 10, 40)
_TEMPERATURE = 0.1
_RATE = 0.02  # of Adam, times the mean size of the matrix's numbers
_BATCH = 256  # texts of a step
_OF_EACH = 4  # of them, texts of a label
_LEAST_STEPS = 5  # of a pass: few texts need no fewer


def fit_linear(
    vectors: NDArray[np.float32],
    labels: Sequence[str],
    shrinkage: float,
    dimension: int | None,
    seed: int,
    progress: bool = False,
) -> LinearMap:
    """Train a linear map of vectors ``(n, D)`` of labelled texts by the supervised contrastive loss.

    It starts from the discriminant. A fifth of the texts of each label is held out to choose the number of passes by
    the MAP with which they find the others of their label; then all texts are trained on.

    Args:
        vectors: one row per distinct text, not normalised.
        labels: of each row.
        dimension: number of leading directions of the discriminant to keep; None: all.
        seed: of the order of the texts.
    """
    start, label = fit_labelled(vectors, labels, shrinkage, dimension), numbered(labels)
    passes = 0
    if start.dimension > 1:  # of two labels the discriminant is all there is
        scores = choose_passes(vectors, labels, shrinkage, dimension, seed, progress)
        passes = max(scores, key=lambda count: scores[count], default=passes)
        tried = ", ".join(f"{count} {100 * score:.2f}" for count, score in scores.items())
        why = f"MAP of held-out texts: {tried}" if scores else "too few texts of a label to hold any out"
        click.echo(f"{passes} passes ({why})", err=True)
    return _train(start, vectors, label, passes, seed, progress)


def choose_passes(
    vectors: NDArray[np.float32],
    labels: Sequence[str],
    shrinkage: float,
    dimension: int | None,
    seed: int,
    progress: bool = False,
) -> dict[int, float]:
    """Return the mean average precision, from 0 to 1, that each of ``PASSES`` gives to texts not trained on.

    Takes what ``fit_linear`` takes; returns nothing where too few texts have a label that others have.
    """
    label = numbered(labels)
    held = rows_of_fold(label, 0)
    rest = np.setdiff1d(np.arange(len(label)), held)
    ranked = few_of_each(held, label)
    if np.bincount(label[ranked]).max(initial=0) < 2:
        return {}
    try:
        start = fit_discriminant(vectors[rest], [labels[row] for row in rest], shrinkage, dimension)
    except CseError:  # what is left has one label, or one text of each
        return {}
    scores = {}
    for count in PASSES:
        fitted = _train(start, vectors[rest], label[rest], count, seed, progress)
        projected = normalize(fitted(torch.from_numpy(vectors[ranked]))).numpy()
        scores[count] = float(same_label_precisions(projected, label[ranked]).mean())
    return scores


def _train(
    start: LinearMap, vectors: NDArray[np.float32], label: NDArray[np.int64], passes: int, seed: int, progress: bool
) -> LinearMap:
    """Return a map trained for so many passes from ``start``, whose matrix it keeps as it is."""
    centred = torch.from_numpy(vectors) - start.mean
    matrix = torch.nn.Parameter(start.matrix / (centred @ start.matrix).norm(dim=1).mean())
    steps = passes * max(len(vectors) // _BATCH, _LEAST_STEPS)
    adam = torch.optim.Adam([matrix], lr=_RATE * matrix.abs().mean().item())
    falling = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.01, max(steps, 1))
    random = np.random.default_rng(seed)
    rows_of = [np.flatnonzero(label == one) for one in range(label.max() + 1)]
    rows_of = [rows for rows in rows_of if len(rows)]
    for _ in trange(steps, desc="training the head", disable=not progress, leave=False):
        chosen = random.permutation(len(rows_of))[: _BATCH // _OF_EACH]
        rows = np.concatenate([random.permutation(rows_of[one])[:_OF_EACH] for one in chosen])
        loss = supervised_contrastive(centred[rows] @ matrix, torch.from_numpy(label[rows]), _TEMPERATURE)
        adam.zero_grad()
        loss.backward()
        adam.step()
        falling.step()
    return LinearMap.of("linear", start.mean.double().numpy(), matrix.detach().double().numpy())
