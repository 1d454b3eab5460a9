"""Fit post-processing, whitening or flow, on the prepared training sentences."""

from __future__ import annotations

import sys

import click
import numpy as np
from torch import nn

from cse.data.store import PreparedData
from cse.errors import CseError
from cse.model.post import Flow, fit_flow, fit_whitening, kept_dimension
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.groups.post import PostSettings

FIT_BATCH = 64  # sentences


def check_post(encoder: SentenceEncoder, post: PostSettings) -> None:
    """Refuse post-processing that does not fit an encoder, before training or encoding.

    Raises:
        CseError: the encoder already has post-processing, or its width does not fit.
    """
    if post.kind == "none":
        return
    if encoder.post is not None:
        raise CseError(f"post.kind: the encoder already has {encoder.post.config()['kind']}; use one without")
    if post.kind == "whitening":
        kept_dimension(post.dimension, encoder.dimension)
    else:
        Flow(encoder.dimension)


def fit_post(encoder: SentenceEncoder, post: PostSettings, data: PreparedData) -> None:
    """Fit whitening or flow on the training sentences and add it to the encoder.

    Raises:
        CseError: what ``check_post`` raises, or too few sentences.
    """
    check_post(encoder, post)
    found = list(dict.fromkeys(data.sentences()))
    sentences = [found[i] for i in np.linspace(0, len(found) - 1, min(post.sentences, len(found)), dtype=int)]
    click.echo(f"fitting {post.kind} on {len(sentences):,} of {len(found):,} distinct sentences", err=True)
    bar = sys.stderr.isatty()
    longest = min(post.max_length, encoder.max_length)
    vectors = encoder.encode_cut(sentences, longest, FIT_BATCH, normalize=False, show_progress_bar=bar)
    if post.kind == "whitening":
        fitted: nn.Module = fit_whitening(vectors, post.dimension)
    else:
        fitted = fit_flow(
            vectors,
            learning_rate=post.learning_rate,
            batch_size=post.batch_size,
            epochs=post.epochs,
            seed=post.seed,
            progress=bar,
        )
    encoder.post = fitted.to(next(encoder.parameters()).device)
