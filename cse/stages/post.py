"""Add post-processing to any encoder, trained or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cse.data.store import PreparedData
from cse.data.tasks.store import open_dev
from cse.evaluation.dev_facts import dev_keys, facts_of
from cse.evaluation.tasks.score import score_dev
from cse.model.checkpoint import read_config, save_checkpoint
from cse.model.named import is_checkpoint
from cse.model.post import QUERY_MAP
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, check_folder, publish_folder
from cse.settings.model import PostSettings
from cse.settings.objective import CollectionSettings
from cse.stages.fit_post import DEFAULT_COLLECTION, FIT_BATCH, check_post, fit_post


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
        measure: of the dev task; None: its main measure.

    Returns:
        The dev score as facts; empty without dev data.
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
