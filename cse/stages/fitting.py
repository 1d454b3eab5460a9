"""Other uses of the prepared sentences in training: words to look up, post-processing to fit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from torch import nn

from cse.data.store import VIEW_COLUMNS, PreparedData
from cse.data.tasks.kinds import all_texts
from cse.data.tasks.store import open_dev, open_tasks
from cse.errors import CseError
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.bare import BareBackbone
from cse.model.post import Flow, fit_flow, fit_whitening, kept_dimension
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import StaticWords, find_words, is_word_file, load_words, words_of
from cse.settings.groups.backbone import BackboneSettings
from cse.settings.groups.pooler import PoolerSettings
from cse.settings.groups.post import PostSettings

FIT_BATCH = 64  # sentences


def open_backbone(backbone: BackboneSettings, pooler: PoolerSettings, data: PreparedData) -> Backbone | StaticWords:
    """Open the language model, or the word vectors of all words in the prepared data.

    Raises:
        CseError: what ``find_backbone``, ``load_backbone`` and ``load_words`` raise.
    """
    if is_word_file(Path(backbone.name)):
        words = words_of(_texts(data, everything=True))
        bar = sys.stderr.isatty()
        return load_words(find_words(backbone.name), words, dimension=backbone.word_dimension, progress=bar)
    return open_language_model(find_backbone(backbone.name, backbone.revision), backbone, pooler)


def open_language_model(files: BackboneFiles, backbone: BackboneSettings, pooler: PoolerSettings) -> Backbone:
    """Load a language model whose use is as its folder declares, unless the settings say otherwise.

    Raises:
        CseError: what ``load_backbone`` raises.
    """
    opened = load_backbone(files, pooler.kind, backbone.family)
    return opened.use_as(max_length=backbone.max_length, texts=backbone.texts)


def bare_of(backbone: BackboneSettings) -> BareBackbone:
    """Return what a model of these settings is compared with: its backbone, revision, length and task texts."""
    return BareBackbone(**backbone.model_dump(exclude={"family"}))


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
    found = list(dict.fromkeys(_texts(data, everything=False)))
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


def _texts(data: PreparedData, *, everything: bool) -> Iterator[str]:
    """Yield the sentences of the main source; with ``everything``, also the further ones', dev's and evaluation's."""
    for rows in [data, *(data.of(name) for name in data.sources)] if everything else [data]:
        for name in VIEW_COLUMNS[rows.view]:
            if name != "label":
                yield from rows.train[name]
    if everything:
        dev = open_dev(data)
        for task in [*data.tasks, *open_tasks(data), *([] if dev is None else [dev])]:
            yield from all_texts(task)
