"""Create a bank of prompts, and add trained domains to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from cse.data.store import PreparedData
from cse.errors import CseError
from cse.export.bank import SENTENCES, create_bank, make_domain
from cse.export.domains import add_domain
from cse.export.parity import check_parity
from cse.model.checkpoint_config import identity_of, is_checkpoint, read_config
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.domain import Domain
from cse.runtime.mixed import DomainEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings import Settings
from cse.stages.export import sentences_for_parity

CENTRES = 8  # per domain, for `auto`
_TEXTS = 2000  # training sentences that the centres are computed from
_BATCH = 64


def create(model: str, bank: Path, settings: Settings) -> None:
    """Create a bank for the backbone of a checkpoint, or for a backbone given by folder or hub id."""
    encoder = SentenceEncoder.load(model)
    difference = create_bank(encoder, bank, tolerance=settings.export.tolerance)
    name = encoder.backbone.files.name
    click.echo(f"{bank}: bank of {name} without domains; largest difference from torch {difference:.1e}")


def add(
    model: str, bank: Path, name: str, settings: Settings, *, data: Path | None, metrics: dict[str, Any], replace: bool
) -> Domain:
    """Compare a model's prompts in the bank with torch, then add them as a domain.

    Args:
        model: checkpoint folder, or the bank's bare backbone by folder or hub id.
        bank: folder of the bank.
        name: the domain's name.
        settings: ``export`` is used.
        data: prepared data of the domain, for the comparison and for the choice of domains by text; or None.
        metrics: scores to record.
        replace: whether to replace a domain of that name.

    Raises:
        CseError: the model does not fit the bank, or ONNX and torch differ; the bank is unchanged.
    """
    encoder = SentenceEncoder.load(model)
    checkpoint = ""
    if is_checkpoint(Path(model)):
        checkpoint = identity_of(Path(model))
        score = read_config(Path(model))["facts"].get("dev_spearman")
        metrics = ({} if score is None else {"dev_spearman": score}) | metrics
    onnx = OnnxEncoder(bank, provider=settings.export.provider)
    if onnx.bank is None:
        raise CseError(f"{bank}: a bundle of one model, not a bank; make one with `cse bank create`")
    sentences: Sequence[str] = SENTENCES
    centres = None
    if data is not None:
        prepared = PreparedData(data)
        sentences = sentences_for_parity(prepared, settings.export.sentences)
        centres = centres_of(DomainEncoder(onnx, onnx.bank.bare), training_sentences(prepared, _TEXTS))
    domain = make_domain(
        encoder,
        name,
        normalize=settings.export.normalize,
        metrics=metrics,
        checkpoint=checkpoint,
        centres=centres,
    )
    if domain.facts.backbone == onnx.bank.manifest.shape.backbone:  # otherwise refused below
        check_parity(encoder, DomainEncoder(onnx, domain), sentences, tolerance=settings.export.tolerance)
    add_domain(bank, domain, replace=replace)
    return domain


def training_sentences(data: PreparedData, count: int) -> list[str]:
    """Return up to ``count`` distinct training sentences, spread over the whole set."""
    texts = dict.fromkeys(text for column in data.train.column_names[:1] for text in data.train[column])
    step = max(len(texts) // count, 1)
    return list(texts)[::step][:count]


def centres_of(bare: DomainEncoder, sentences: Sequence[str]) -> NDArray[np.float32]:
    """Return the centres (c, d) of a domain's text: k-means over the bare backbone's vectors, scaled to unit length."""
    from sklearn.cluster import KMeans

    vectors = bare.encode(sentences, batch_size=_BATCH, normalize=True)
    found = KMeans(min(CENTRES, len(np.unique(vectors, axis=0))), n_init=4, random_state=0).fit(vectors)
    centres = found.cluster_centers_
    return (centres / np.linalg.norm(centres, axis=1, keepdims=True)).astype(np.float32)
