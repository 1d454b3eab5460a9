"""Fit post-processing, whitening, discriminant, linear head or flow, on the prepared training sentences."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click
import numpy as np
from torch import nn

from cse.data.store import PreparedData
from cse.errors import CseError
from cse.model.post import LABELLED_KINDS, LINEAR_KINDS, QUERY_MAP, Flow, fit_flow, fit_whitening, kept_dimension
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.side import check_side
from cse.runtime.uses import QUERY
from cse.settings.model import PostSettings
from cse.settings.objective import CollectionSettings
from cse.stages.build.losses import collection_from
from cse.stages.fit_discriminant import decide_shrinkage, fit_labelled, labelled_texts
from cse.stages.fit_linear import fit_linear
from cse.stages.fit_query_map import fit_query_map
from cse.training.collection import unit_vectors

FIT_BATCH = 64  # sentences
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
        encoder: any encoder; for a query map one with a query side.
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
    longest = min(post.max_length, encoder.max_length)
    vectors = encoder.encode_cut(sentences, longest, FIT_BATCH, normalize=False, show_progress_bar=bar)
    if label_of is not None:
        labels = [label_of[sentence] for sentence in sentences]
        shrinkage = post.shrinkage or decide_shrinkage(vectors, labels, post.dimension)
        if post.kind == "linear":
            fitted: nn.Module = fit_linear(vectors, labels, shrinkage, post.dimension, SEED, bar)
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
    bare = not settings.reads_folder and encoder.prompt is None and encoder.cls is None and encoder.mlp is None
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
