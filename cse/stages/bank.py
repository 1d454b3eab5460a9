"""What may be served: the promotion gate, and a bank of prompts with the trained domains that pass it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import click
import numpy as np
from numpy.typing import NDArray

from cse.choices import Precision
from cse.data.store import PreparedData
from cse.data.tasks.kinds import PROXY, kind_of
from cse.data.tasks.store import open_dev
from cse.errors import CseError
from cse.evaluation.dev_facts import DEV, dev_facts_in, dev_label, dev_of, measure_in, value_of
from cse.evaluation.score import MEASURES, dev_measure, score_dev
from cse.export.bank import SENTENCES, create_bank
from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.export.parity import check_parity
from cse.model.checkpoint import identity_of, recorded
from cse.model.declared import is_checkpoint
from cse.model.sentence_encoder import SentenceEncoder, load_checkpoint
from cse.runtime.bank import BadDomainError, NoDomainError, meaning_of
from cse.runtime.domain import Domain
from cse.runtime.domain_files import check_fit
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings import Settings
from cse.stages.common import DOMAINS
from cse.stages.export import classifier_in, classifier_of, labelled_of, sentences_for_parity, training_sentences
from cse.stages.open_model import bare_of

CENTRES = 8  # per domain, for `auto`
_TEXTS = 2000  # training sentences that the centres are computed from
_BATCH = 64


@dataclass(frozen=True)
class Verdict:
    """Result of the gate.

    Attributes:
        dev: dev score of the candidate's bundle, times 100; None without dev pairs or dev task.
        difference: largest difference between the candidate's bundle and torch; None if above the tolerance.
    """

    reasons: tuple[str, ...]
    dev: float | None
    promoted_dev: float | None
    difference: float | None

    @property
    def passed(self) -> bool:
        """Whether there is no reason to refuse the model."""
        return not self.reasons


def judge(settings: Settings, *, bundle: Path, checkpoint: Path, prepared: Path, promoted: Path | None) -> Verdict:
    """Compare a bundle with its checkpoint and with the promoted bundle, see ``judge_encoders``."""
    return judge_encoders(
        settings,
        onnx=OnnxEncoder(bundle),
        encoder=load_checkpoint(checkpoint),
        data=PreparedData(prepared),
        promoted=None if promoted is None else OnnxEncoder(promoted),
        measure=measure_in(recorded(checkpoint)),
    )


def judge_encoders(
    settings: Settings,
    *,
    onnx: OnnxEncoder,
    encoder: SentenceEncoder,
    data: PreparedData,
    promoted: OnnxEncoder | None,
    named: str = "the promoted model",
    measure: str | None = None,
) -> Verdict:
    """Compare a candidate with torch and, on its own dev pairs, with the model that it would replace.

    The promoted model is scored again because dev pairs change, and scores on different pairs are not comparable.

    Args:
        measure: of the dev score; None, or one that the dev task does not have: the task's main measure.
    """
    reasons, difference = [], None
    try:
        sentences = sentences_for_parity(data)
        precision, tolerance = cast("Precision", onnx.manifest.precision), settings.export.tolerance
        found = check_parity(encoder, onnx, sentences, tolerance=tolerance, precision=precision)
        difference = float(found["largest_difference"])
    except CseError as error:
        reasons.append(f"no parity with torch: {error}")
    dev = before = None
    task, label = open_dev(data), ""
    if task is not None:
        known = (measure or "").removesuffix(PROXY) in MEASURES[kind_of(task)]
        measure = dev_measure(task, measure if known else None, "train.dev_measure")
        label = dev_label(measure)
        dev = round(score_dev(onnx, task, _BATCH, measure).value, 4)
    if promoted is not None:
        if task is None or dev is None:
            reasons.append(f"no dev pairs for comparison with {named}; set data.dev_path")
        else:
            before = round(score_dev(promoted, task, _BATCH, measure).value, 4)
            tolerance = settings.promotion.dev_tolerance
            if not dev >= before - tolerance:
                reasons.append(
                    f"{label} {dev:.2f} is more than {tolerance:g} below {named}'s {before:.2f} on the same pairs "
                    "(promotion.dev_tolerance)"
                )
    return Verdict(tuple(reasons), dev, before, difference)


# ---- a bank ---------------------------------------------------------------------------------------------------------


def create(model: str, bank: Path, settings: Settings) -> None:
    """Create a bank for the backbone of a checkpoint, or for a backbone given by folder or hub id."""
    click.echo(_create(SentenceEncoder.load(model), bank, settings))


def _create(encoder: SentenceEncoder, bank: Path, settings: Settings) -> str:
    difference = create_bank(encoder, bank, tolerance=settings.export.tolerance, adapters=settings.bank.adapters)
    name = encoder.backbone.files.name
    return f"{bank}: bank of {name} without domains; largest difference from torch {difference:.1e}"


def add(
    model: str,
    bank: Path,
    name: str,
    settings: Settings,
    *,
    data: Path | None,
    replace: bool,
    classifier: Path | None = None,
) -> Domain:
    """Compare a model's prompts in the bank with torch, then add them as a domain.

    Args:
        model: checkpoint folder, or the bank's bare backbone by folder or hub id.
        data: prepared data of the domain, for the comparison, the choice of domains by text and, of labelled texts, a
            classifier; or None.
        classifier: a bundle of the model, whose classifier the domain gets.
    """
    onnx, encoder = _open(bank), SentenceEncoder.load(model)
    prepared = None if data is None else PreparedData(data)
    domain = _domain_of(encoder, Path(model), onnx, name, prepared)
    if domain.facts.backbone == onnx.manifest.backbone["sha256"]:  # otherwise refused below
        sentences = SENTENCES if prepared is None else sentences_for_parity(prepared)
        click.echo(f"comparing {name} in {bank} with torch on {len(sentences)} texts", err=True)
        check_parity(encoder, onnx.of(domain), sentences, tolerance=settings.export.tolerance)
    if classifier is not None:
        domain = domain.classifying(classifier_in(classifier, domain.facts.checkpoint, domain.facts.backbone))
    add_domain(bank, domain, replace=replace)
    return domain


@dataclass(frozen=True)
class Admission:
    """What became of a trained domain.

    Attributes:
        outcome: ``added``, ``replaced``, ``unchanged``, ``refused`` or ``not trained``.
        dev: its dev score times 100; None without dev pairs or dev task, or if it was not scored.
        before: the same for the domain that was in the bank, or for the bare backbone if there was none.
    """

    name: str
    outcome: str
    dev: float | None = None
    before: float | None = None
    reason: str = ""


def update(settings: Settings, names: Sequence[str], *, bank: Path, place: Path = DOMAINS) -> Iterator[Admission]:
    """Put trained domains that pass the gate into the bank, which is created if it does not exist.

    A domain passes if its vectors match torch's and its dev score is not more than ``promotion.dev_tolerance`` below
    that of the domain it replaces, or of the bare backbone if it is new, on the same pairs. The others stay as they
    are.
    """
    if not meaning_of(bank).encodes:
        click.echo(_create(bare_of(settings.backbone), bank, settings), err=True)
    onnx = _open(bank)
    for name in names:
        folder = place / name
        if not is_checkpoint(folder / "checkpoint"):
            yield Admission(name, "not trained", reason=f"{folder}: no checkpoint; run `dvc repro domain@{name}`")
            continue
        try:
            yield _admit(settings, name, folder, onnx)
        except CseError as error:
            yield Admission(name, "refused", reason=str(error))


def _admit(settings: Settings, name: str, folder: Path, onnx: OnnxEncoder) -> Admission:
    checkpoint, data = folder / "checkpoint", PreparedData(folder / "prepared")
    try:
        held = onnx.bank.domain(name)
    except (NoDomainError, BadDomainError):
        held = None
    if held is not None and held.facts.checkpoint == identity_of(checkpoint):
        return Admission(name, "unchanged", value_of(dev_of(held.facts.metrics)))
    encoder = load_checkpoint(checkpoint)
    domain = _domain_of(encoder, checkpoint, onnx, name, data)
    check_fit(folder, domain.facts, domain.tensors(), onnx.bank.manifest.shape)
    rival = held or (None if open_dev(data) is None else onnx.bank.bare)
    verdict = judge_encoders(
        settings,
        onnx=onnx.of(domain),
        encoder=encoder,
        data=data,
        promoted=None if rival is None else onnx.of(rival),
        measure=measure_in(recorded(checkpoint)),
        named="the bare backbone" if held is None else "the bank's domain",
    )
    if not verdict.passed:
        return Admission(name, "refused", verdict.dev, verdict.promoted_dev, "; ".join(verdict.reasons))
    add_domain(onnx.path, domain, replace=True)
    return Admission(name, "added" if held is None else "replaced", verdict.dev, verdict.promoted_dev)


def _open(bank: Path) -> OnnxEncoder:
    encoder = OnnxEncoder(bank)
    encoder.bank.of_many()
    return encoder


def _domain_of(
    encoder: SentenceEncoder, model: Path, onnx: OnnxEncoder, name: str, data: PreparedData | None
) -> Domain:
    """Return an encoder as a domain, with what its checkpoint records, and centres and classifier of its text."""
    checkpoint, metrics, centres = identity_of(model), dev_facts_in(recorded(model), DEV), None
    if data is not None:
        texts = training_sentences(data, _TEXTS)
        click.echo(f"encoding {len(texts):,} training texts of {name} for its centres", err=True)
        centres = centres_of(onnx.of(onnx.bank.bare), texts)
    domain = make_domain(
        encoder,
        name,
        normalize=True,
        metrics=metrics,
        checkpoint=checkpoint,
        centres=centres,
        shape=onnx.manifest.shape,
    )
    labelled = None if data is None else labelled_of(data)
    if labelled is None or domain.for_queries or domain.facts.backbone != onnx.manifest.backbone["sha256"]:
        return domain
    bare = partial(onnx.of, onnx.bank.bare) if checkpoint else None
    return domain.classifying(classifier_of(onnx.of(domain), labelled, bare=bare))


def centres_of(bare: OnnxEncoder, sentences: Sequence[str]) -> NDArray[np.float32]:
    """Return the centres (c, d) of a domain's text: k-means over the bare backbone's vectors, scaled to unit length."""
    from sklearn.cluster import KMeans

    vectors = bare.encode(sentences, batch_size=_BATCH, normalize=True, show_progress_bar=sys.stderr.isatty())
    count = min(CENTRES, len(np.unique(vectors, axis=0)))
    centres = KMeans(count, n_init=4, random_state=0).fit(vectors).cluster_centers_
    return (centres / np.linalg.norm(centres, axis=1, keepdims=True)).astype(np.float32)
