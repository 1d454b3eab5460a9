"""Add whitening or flow to any encoder, trained or not."""

from __future__ import annotations

from pathlib import Path

import click

from cse.data.store import PreparedData
from cse.data.tasks.store import open_dev
from cse.evaluation.dev import score_dev
from cse.evaluation.dev_facts import facts_of
from cse.model.checkpoint import save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, check_folder, publish_folder
from cse.settings.groups.post import PostSettings
from cse.stages.fit_post import FIT_BATCH, check_post, fit_post


def put_behind(model: str, post: PostSettings, *, prepared: Path, out: Path) -> None:
    """Fit post-processing on prepared sentences and save the encoder with it as a checkpoint.

    Args:
        model: checkpoint folder, or a bare backbone by folder, hub id or file of word vectors.
        post: the post-processing to fit.
        prepared: prepared data.
        out: folder of the new checkpoint.

    Raises:
        CseError: the model already has post-processing, or there are too few sentences.
    """
    check_folder(out, Kind.CHECKPOINT)
    data = PreparedData(prepared)
    encoder = SentenceEncoder.load(model)
    check_post(encoder, post)
    dev = open_dev(data)
    before = None if dev is None else score_dev(encoder, dev, FIT_BATCH)
    fit_post(encoder, post, data)
    after = None if dev is None else score_dev(encoder, dev, FIT_BATCH)
    with publish_folder(out, Kind.CHECKPOINT) as target:
        save_checkpoint(encoder, target, {} if after is None else facts_of(after))
    change = "" if before is None or after is None else f", {before} -> {after.value:.2f}"
    click.echo(f"{out}: {model} with {post.kind}{change}")
