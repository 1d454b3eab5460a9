"""Fit post-processing, whitening, discriminant, linear head, query map or flow, on the prepared training sentences."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from cse.data.store import PreparedData
from cse.data.tasks.store import open_dev
from cse.errors import CseError
from cse.evaluation.dev_facts import dev_keys, facts_of
from cse.evaluation.tasks.score import score_dev
from cse.model.checkpoint import read_config, save_checkpoint
from cse.model.named import is_checkpoint
from cse.model.post import LABELLED_KINDS, LINEAR_KINDS, QUERY_MAP, Flow, fit_flow, fit_whitening, kept_dimension
from cse.model.post.linear import LinearMap
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.side import check_side
from cse.outputs import Kind, check_folder, publish_folder
from cse.runtime.uses import QUERY
from cse.settings.model import PostSettings
from cse.settings.objective import CollectionSettings
from cse.training.collection import unit_vectors
from cse.training.heads import decide_shrinkage, fit_labelled, fit_linear, fit_query_map, labelled_texts
from cse.training.losses import collection_from

FIT_BATCH = 64  # sentences
_FIT_LENGTH = 64  # tokens of each, at most
SEED = 42  # of initialisation and order
DEFAULT_COLLECTION = CollectionSettings()


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
    if post.kind in LINEAR_KINDS:
        kept_dimension(post.dimension, encoder.dimension)
    else:
        Flow(encoder.dimension)


def fit_post(
    encoder: SentenceEncoder,
    post: PostSettings,
    data: PreparedData,
    collection: CollectionSettings = DEFAULT_COLLECTION,
    weights: Mapping[str, float] | None = None,
) -> None:
    """Fit post-processing on the training sentences and add it to the encoder.

    Args:
        data: prepared data; a query map is fitted on the rows of all its sources.
        weights: of the further sources by name, see ``data.more``; a query map sees so many rows of each for one of the
            main source. None: 1.
    """
    check_post(encoder, post, data)
    if post.kind == QUERY_MAP:
        _fit_query_map(encoder, post, data, collection, weights or {})
        return
    label_of = labelled_texts(data) if post.kind in LABELLED_KINDS else None
    found = list(dict.fromkeys(data.sentences()) if label_of is None else label_of)
    sentences = [found[i] for i in np.linspace(0, len(found) - 1, min(post.sentences, len(found)), dtype=int)]
    click.echo(f"fitting {post.kind} on {len(sentences):,} of {len(found):,} distinct sentences", err=True)
    bar = sys.stderr.isatty()
    longest = min(_FIT_LENGTH, encoder.max_length)
    vectors = encoder.encode_cut(sentences, longest, FIT_BATCH, normalize=False, show_progress_bar=bar)
    if label_of is not None:
        labels = [label_of[sentence] for sentence in sentences]
        shrinkage = decide_shrinkage(vectors, labels, post.dimension)
        if post.kind == "linear":
            fitted: LinearMap | Flow = fit_linear(vectors, labels, shrinkage, post.dimension, SEED, bar)
        else:
            fitted = fit_labelled(vectors, labels, shrinkage, post.dimension)
    elif post.kind == "whitening":
        fitted = fit_whitening(vectors, post.dimension)
    else:
        fitted = fit_flow(vectors, seed=SEED, progress=bar)
    encoder.post = fitted.to(next(encoder.parameters()).device)


def _fit_query_map(
    encoder: SentenceEncoder,
    post: PostSettings,
    data: PreparedData,
    settings: CollectionSettings,
    weights: Mapping[str, float],
) -> None:
    made = collection_from(encoder, [data, *map(data.of, data.sources)], settings, post.sentences)
    bar = sys.stderr.isatty()
    bare = settings.teacher_folder is None and encoder.prompt is None and encoder.cls is None and encoder.mlp is None
    vectors = made.queries if bare else unit_vectors(encoder, made.pairs.queries, QUERY, bar)
    encoder.post = fit_query_map(
        vectors,
        made.documents,
        made.targets,
        seed=SEED,
        times=made.pairs.times([weights.get(name, 1.0) for name in data.sources]),
        progress=bar,
    ).to(next(encoder.parameters()).device)
    check_side(encoder)


def put_behind(
    model: str,
    post: PostSettings,
    *,
    prepared: Path,
    out: Path,
    measure: str | None = None,
    collection: CollectionSettings = DEFAULT_COLLECTION,
) -> dict[str, Any]:
    """Fit post-processing on prepared sentences and save the encoder with it as a checkpoint.

    Args:
        model: checkpoint folder, or a bare backbone by folder, hub id or file of word vectors.
        out: folder of the new checkpoint; it keeps the facts of ``model`` beside its own dev score.
    """
    check_folder(out, Kind.CHECKPOINT)
    data = PreparedData(prepared)
    encoder = SentenceEncoder.load(model)
    if post.kind == QUERY_MAP and not is_checkpoint(Path(model)):
        encoder = SentenceEncoder(encoder.backbone, side="query")
    check_post(encoder, post, data)
    dev = open_dev(data)
    before = None if dev is None else score_dev(encoder, dev, FIT_BATCH, measure)
    fit_post(encoder, post, data, collection)
    after = None if dev is None else score_dev(encoder, dev, FIT_BATCH, measure)
    scores = {} if after is None else facts_of(after)
    with publish_folder(out, Kind.CHECKPOINT) as target:
        save_checkpoint(encoder, target, _facts_behind(Path(model), post) | scores)
    change = "" if before is None or after is None else f", {before} -> {after.value:.2f}"
    click.echo(f"{out}: {model} with {post.kind}{change}")
    return scores


def _facts_behind(model: Path, post: PostSettings) -> dict[str, Any]:
    """Return a checkpoint's facts with this post-processing, and without dev scores of the encoder alone."""
    facts = (read_config(model)["facts"] if is_checkpoint(model) else None) or {}
    kept = {key: value for key, value in facts.items() if key not in dev_keys()}
    if "settings" in kept:
        kept["settings"] = kept["settings"] | {"post": post.model_dump(mode="json")}
    return kept
