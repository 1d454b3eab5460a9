"""Add whitening or flow to any encoder, trained or not."""

from __future__ import annotations

from pathlib import Path

import click

from cse.data.store import PreparedData
from cse.evaluation.sts import dev_score
from cse.model.checkpoint import save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, check_folder, publish_folder
from cse.settings.groups.post import PostSettings
from cse.stages.fitting import FIT_BATCH, check_post, fit_post


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
    before = None if data.dev is None else dev_score(encoder, data.dev, FIT_BATCH)
    fit_post(encoder, post, data)
    facts = {} if data.dev is None else {"dev_spearman": round(dev_score(encoder, data.dev, FIT_BATCH), 4)}
    with publish_folder(out, Kind.CHECKPOINT) as target:
        save_checkpoint(encoder, target, facts)
    change = f", dev Spearman {before:.2f} -> {facts['dev_spearman']:.2f}" if before is not None else ""
    click.echo(f"{out}: {model} with {post.kind}{change}")
