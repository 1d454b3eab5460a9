"""Linear maps of vectors that are computed once: a discriminant, a head trained from it, a map of queries.

A step multiplies matrices of a batch of vectors, so that a pass over 10,000 texts takes under a second. How many passes
the head has is chosen on held-out texts; none is the discriminant itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from tqdm import trange

from cse.data.store import PreparedData
from cse.errors import CseError
from cse.evaluation.tasks.labels import same_label_precisions
from cse.losses.collection import TEMPERATURE, Targets, sampled_cross_entropy
from cse.losses.supervised_contrastive import supervised_contrastive
from cse.model.post.linear import QUERY_MAP, LinearMap, Scatter, fit_discriminant, numbered, scatter_of

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
    click.echo(f"shrinkage {shrinkage:g} ({why})", err=True)
    return shrinkage


def choose_shrinkage(vectors: NDArray[np.float32], labels: Sequence[str], dimension: int | None) -> dict[float, float]:
    """Return the mean average precision, from 0 to 1, that each of ``SHRINKAGES`` gives to texts not fitted on.

    Each of five folds of even labels is held out in turn, and its texts search it for the others of their label. Texts
    are held out from the discriminant alone: where the encoder was trained on the same texts, their vectors keep
    to their labels more than those of new texts will, and the choice shrinks too little.

    Args:
        vectors: ``(n, D)``, one row per distinct text, not normalised.

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
    random = np.random.default_rng(seed)
    rows_of = [np.flatnonzero(label == one) for one in range(label.max() + 1)]
    rows_of = [rows for rows in rows_of if len(rows)]

    def loss() -> torch.Tensor:
        chosen = random.permutation(len(rows_of))[: _BATCH // _OF_EACH]
        rows = np.concatenate([random.permutation(rows_of[one])[:_OF_EACH] for one in chosen])
        return supervised_contrastive(centred[rows] @ matrix, torch.from_numpy(label[rows]), _TEMPERATURE)

    rate = _RATE * matrix.abs().mean().item()
    _optimise(matrix, loss, rate=rate, last=0.01, steps=steps, desc="training the head", progress=progress)
    return LinearMap.of("linear", start.mean.double().numpy(), matrix.detach().double().numpy())


def _optimise(
    matrix: torch.nn.Parameter,
    loss: Callable[[], torch.Tensor],
    *,
    rate: float,
    last: float,
    steps: int,
    desc: str,
    progress: bool,
) -> None:
    """Minimise by Adam, whose rate falls to the share ``last`` of itself."""
    adam = torch.optim.Adam([matrix], lr=rate)
    falling = torch.optim.lr_scheduler.LinearLR(adam, 1.0, last, max(steps, 1))
    for _ in trange(steps, desc=desc, disable=not progress, leave=False):
        value = loss()
        adam.zero_grad()
        value.backward()
        adam.step()
        falling.step()


_QUERIES = 64  # queries of a step
_PASSES, _LEAST, _MOST = 32, 250, 3000  # steps: more passes over few stand-ins cost a search by words and vectors
_MAP_RATE = 1e-3  # of Adam, falling to 0


def fit_query_map(
    vectors: NDArray[np.float32],
    collection: NDArray[np.float32],
    targets: Targets,
    *,
    temperature: float = TEMPERATURE,
    seed: int,
    times: NDArray[np.int64] | None = None,
    progress: bool = False,
) -> LinearMap:
    """Train a matrix ``(D, D)`` of query vectors by ``sampled_cross_entropy``, from the identity on.

    Args:
        vectors: of the queries ``(n, D)``, one per row of ``targets``.
        times: how often each query comes in a pass ``(n,)``; None: once.
    """
    queries, documents = torch.from_numpy(vectors), torch.from_numpy(collection)
    place, share, own, sample = (torch.from_numpy(each) for each in vars(targets).values())
    matrix = torch.nn.Parameter(torch.eye(vectors.shape[1]))
    once = np.arange(len(queries)) if times is None else np.repeat(np.arange(len(queries)), times)
    steps = min(max(_PASSES * len(once) // _QUERIES, _LEAST), _MOST)
    random = np.random.default_rng(seed)
    order: list[int] = []

    def loss() -> torch.Tensor:
        nonlocal order
        while len(order) < min(_QUERIES, len(once)):
            order += random.permutation(once).tolist()
        rows, order = order[:_QUERIES], order[_QUERIES:]
        return sampled_cross_entropy(
            queries[rows] @ matrix, documents, place[rows], share[rows], own[rows], sample, temperature=temperature
        )

    _optimise(matrix, loss, rate=_MAP_RATE, last=0.0, steps=steps, desc="training the query map", progress=progress)
    width = vectors.shape[1]
    return LinearMap.of(QUERY_MAP, np.zeros(width), matrix.detach().double().numpy())
