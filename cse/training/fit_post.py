"""Fit post-processing, whitening, discriminant, linear head, query map or flow, on the prepared training sentences.

Linear maps are fitted on vectors that are computed once. A step of the trained ones multiplies matrices of a batch of
vectors, so that a pass over 10,000 texts takes under a second. How many passes the head has is chosen on held-out
texts; none is the discriminant itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from tqdm import trange

from cse.data.store import PreparedData
from cse.data.tasks.store import open_dev
from cse.errors import CseError
from cse.evaluation.dev_facts import dev_keys, facts_of
from cse.evaluation.labels import same_label_precisions
from cse.evaluation.score import UnitVectors, score_dev
from cse.losses.collection import TEMPERATURE, Targets, sampled_cross_entropy
from cse.losses.supervised_contrastive import supervised_contrastive
from cse.model.checkpoint import recorded, save_checkpoint
from cse.model.declared import is_checkpoint
from cse.model.flow import Flow, fit_flow
from cse.model.post import (
    LABELLED_KINDS,
    QUERY_MAP,
    LinearMap,
    Scatter,
    fit_discriminant,
    fit_whitening,
    kept_dimension,
    numbered,
    scatter_of,
)
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, check_folder, publish_folder
from cse.runtime.uses import QUERY
from cse.settings.model import PostSettings
from cse.training.collection import collection_from

FIT_BATCH = 64  # sentences
_FIT_LENGTH = 64  # tokens of each, at most
SEED = 42  # of initialisation and order
N = TypeVar("N", int, float)


def check_post(encoder: SentenceEncoder, post: PostSettings, data: PreparedData) -> None:
    """Refuse post-processing that does not fit an encoder or the data, before training or encoding."""
    if post.kind == "none":
        return
    if encoder.post is not None:
        raise CseError(f"post.kind: the encoder already has {encoder.post.config()['kind']}; use one without")
    if post.kind in LABELLED_KINDS:
        data.check_labelled()
    if post.kind == QUERY_MAP and encoder.documents is None:
        raise CseError(f"post.kind: {QUERY_MAP} maps queries alone; set prompt.side: {QUERY}")
    if post.kind == "flow":
        Flow(encoder.dimension)
    elif post.kind != QUERY_MAP:  # which keeps all dimensions
        kept_dimension(post.dimension, encoder.dimension)


def fit_post(
    encoder: SentenceEncoder, post: PostSettings, data: PreparedData, weights: Mapping[str, float] | None = None
) -> None:
    """Fit post-processing, which ``check_post`` has passed, on the training sentences and add it to the encoder.

    A query map is fitted on the rows of all sources, ``weights`` of them (1 by default) for each of the main one.
    """
    device = next(encoder.parameters()).device
    if post.kind == QUERY_MAP:
        made = collection_from(encoder, [data, *map(data.of, data.sources)], post.sentences)
        bare = encoder.prompt is None and encoder.cls is None and encoder.mlp is None
        vectors = made.queries
        if not bare:
            (vectors,) = UnitVectors(encoder, None, sys.stderr.isatty()).of(made.pairs.queries, role=QUERY)
        times = made.pairs.times([(weights or {}).get(name, 1.0) for name in data.sources])
        encoder.post = fit_query_map(vectors, made.documents, made.targets, seed=SEED, times=times).to(device)
        encoder.check_side()
        return
    label_of = labelled_texts(data) if post.kind in LABELLED_KINDS else None
    found = list(dict.fromkeys(data.sentences()) if label_of is None else label_of)
    sentences = [found[i] for i in np.linspace(0, len(found) - 1, min(post.sentences, len(found)), dtype=int)]
    click.echo(f"fitting {post.kind} on {len(sentences):,} of {len(found):,} distinct sentences", err=True)
    bar = sys.stderr.isatty()
    longest = min(_FIT_LENGTH, encoder.max_length)
    vectors = encoder.encode_counting(
        sentences, FIT_BATCH, normalize=False, show_progress_bar=bar, max_length=longest
    ).warned()
    if label_of is not None:
        labels = [label_of[sentence] for sentence in sentences]
        shrinkage = _best(choose_shrinkage(vectors, labels, post.dimension), _UNDECIDED, "shrinkage {:g}")
        fit = fit_linear if post.kind == "linear" else fit_labelled
        fitted: LinearMap | Flow = fit(vectors, labels, shrinkage, post.dimension)
    elif post.kind == "whitening":
        fitted = fit_whitening(vectors, post.dimension)
    else:
        fitted = fit_flow(vectors, seed=SEED, progress=bar)
    encoder.post = fitted.to(device)


def put_behind(
    model: str, post: PostSettings, *, prepared: Path, out: Path, measure: str | None = None
) -> dict[str, Any]:
    """Fit post-processing on prepared sentences and save the encoder with it as a checkpoint.

    Args:
        model: checkpoint folder, or a bare backbone by folder, hub id or file of word vectors.
        out: the new checkpoint; it keeps the facts of ``model`` beside its own dev score.
    """
    check_folder(out, Kind.CHECKPOINT)
    data = PreparedData(prepared)
    encoder = SentenceEncoder.load(model)
    if post.kind == QUERY_MAP and not is_checkpoint(Path(model)):
        encoder = SentenceEncoder(encoder.backbone, side="query")
    check_post(encoder, post, data)
    dev, scores, change = open_dev(data), {}, ""
    before = None if dev is None else score_dev(encoder, dev, FIT_BATCH, measure)
    fit_post(encoder, post, data)
    if dev is not None:
        after = score_dev(encoder, dev, FIT_BATCH, measure)
        scores, change = facts_of(after), f", {before} -> {after.value:.2f}"
    kept = {
        key: value for key, value in recorded(Path(model)).items() if key not in dev_keys()
    }  # they were of the encoder alone
    if "settings" in kept:
        kept["settings"] = kept["settings"] | {"post": post.model_dump(mode="json")}
    with publish_folder(out, Kind.CHECKPOINT) as target:
        save_checkpoint(encoder, target, kept | scores)
    click.echo(f"{out}: {model} with {post.kind}{change}")
    return scores


# ---- on labelled texts --------------------------------------------------------------------------------------------

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


def _best(scores: Mapping[N, float], otherwise: N, words: str) -> N:
    """Return the choice that ranks held-out texts best, and say in these words that it was chosen and why."""
    best = max(scores, key=lambda one: scores[one], default=otherwise)
    tried = ", ".join(f"{one:g} {100 * score:.2f}" for one, score in scores.items())
    why = f"MAP of held-out texts: {tried}" if tried else "too few texts of a label to hold any out"
    click.echo(f"{words.format(best)} ({why})", err=True)
    return best


def choose_shrinkage(vectors: NDArray[np.float32], labels: Sequence[str], dimension: int | None) -> dict[float, float]:
    """Return the mean average precision, from 0 to 1, that each of ``SHRINKAGES`` gives to texts not fitted on.

    Each of five folds of even labels is held out in turn, and its texts search it for the others of their label. Texts
    are held out from the discriminant alone: where the encoder was trained on the same texts, their vectors keep
    to their labels more than those of new texts will, and the choice shrinks too little. Nothing is returned where no
    fold has two texts of a label. Vectors ``(n, D)`` are one per distinct text, not normalised.
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
            precisions.append(_precisions(rest.fit(shrinkage, dimension), vectors, label, ranked))
    scores = {shrinkage: np.concatenate(parts) for shrinkage, parts in found.items() if parts}
    return {shrinkage: float(values.mean()) for shrinkage, values in scores.items() if len(values)}


def _precisions(
    fitted: LinearMap, vectors: NDArray[np.float32], label: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    projected = normalize(fitted(torch.from_numpy(vectors[rows]))).numpy()
    return same_label_precisions(projected, label[rows])


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
    vectors: NDArray[np.float32], labels: Sequence[str], shrinkage: float, dimension: int | None, seed: int = SEED
) -> LinearMap:
    """Train a linear map of vectors ``(n, D)`` of labelled texts by the supervised contrastive loss.

    It starts from the discriminant. A fifth of the texts of each label is held out to choose the number of passes by
    the MAP with which they find the others of their label; then all texts are trained on.
    """
    start, label = fit_labelled(vectors, labels, shrinkage, dimension), numbered(labels)
    passes = 0
    if start.dimension > 1:  # of two labels the discriminant is all there is
        passes = _best(choose_passes(vectors, labels, shrinkage, dimension, seed), passes, "{} passes")
    return _train(start, vectors, label, passes, seed)


def choose_passes(
    vectors: NDArray[np.float32], labels: Sequence[str], shrinkage: float, dimension: int | None, seed: int
) -> dict[int, float]:
    """Return the MAP that each of ``PASSES`` gives to texts not trained on; nothing where too few share a label."""
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
    fitted = {count: _train(start, vectors[rest], label[rest], count, seed) for count in PASSES}
    return {count: float(_precisions(one, vectors, label, ranked).mean()) for count, one in fitted.items()}


def _train(
    start: LinearMap, vectors: NDArray[np.float32], label: NDArray[np.int64], passes: int, seed: int
) -> LinearMap:
    """Return a map trained for so many passes from ``start``, whose matrix it keeps as it is."""
    centred = torch.from_numpy(vectors) - start.mean
    matrix = torch.nn.Parameter(start.matrix / (centred @ start.matrix).norm(dim=1).mean())
    steps = passes * max(len(vectors) // _BATCH, _LEAST_STEPS)
    random = np.random.default_rng(seed)
    rows_of = [np.flatnonzero(label == one) for one in np.unique(label)]

    def loss() -> torch.Tensor:
        chosen = random.permutation(len(rows_of))[: _BATCH // _OF_EACH]
        rows = np.concatenate([random.permutation(rows_of[one])[:_OF_EACH] for one in chosen])
        return supervised_contrastive(centred[rows] @ matrix, torch.from_numpy(label[rows]), _TEMPERATURE)

    rate = _RATE * matrix.abs().mean().item()
    _optimise(matrix, loss, rate=rate, last=0.01, steps=steps, desc="training the head")
    return LinearMap.of("linear", start.mean.double().numpy(), matrix.detach().double().numpy())


def _optimise(
    matrix: torch.nn.Parameter, loss: Callable[[], torch.Tensor], *, rate: float, last: float, steps: int, desc: str
) -> None:
    """Minimise by Adam, whose rate falls to the share ``last`` of itself."""
    adam = torch.optim.Adam([matrix], lr=rate)
    falling = torch.optim.lr_scheduler.LinearLR(adam, 1.0, last, max(steps, 1))
    for _ in trange(steps, desc=desc, disable=None, leave=False):
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
) -> LinearMap:
    """Train a matrix ``(D, D)`` of query vectors by ``sampled_cross_entropy``, from the identity on.

    Args:
        vectors: of the queries ``(n, D)``, one per row of ``targets``.
        times: how often each query comes in a pass ``(n,)``; None: once.
    """
    queries, documents = torch.from_numpy(vectors), torch.from_numpy(collection)
    place, share, own, sample = map(torch.from_numpy, (targets.place, targets.share, targets.own, targets.sample))
    matrix = torch.nn.Parameter(torch.eye(vectors.shape[1]))
    once = np.repeat(np.arange(len(queries)), 1 if times is None else times)
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

    _optimise(matrix, loss, rate=_MAP_RATE, last=0.0, steps=steps, desc="training the query map")
    return LinearMap.of(QUERY_MAP, np.zeros(len(matrix)), matrix.detach().double().numpy())
