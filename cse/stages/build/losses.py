"""Build the loss from group ``objective``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from cse.data.store import PreparedData
from cse.model.mlm_head import MlmHead
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import (
    CollectionSettings,
    DistillationSettings,
    LabelProxiesSettings,
    LossSettings,
    MaskedLmSettings,
    NtXentSettings,
    ObjectiveSettings,
    ReplacedTokensSettings,
)
from cse.stages.build.collection import collection_from
from cse.stages.build.replaced_tokens import source_from
from cse.stages.build.teachers import bare_teacher, teachers_from
from cse.training.corruption import Vocabulary
from cse.training.losses import Losses
from cse.training.terms.collection import Collection
from cse.training.terms.contrastive_tension import ContrastiveTension
from cse.training.terms.distillation import Distillation
from cse.training.terms.label_proxies import LabelProxies
from cse.training.terms.masked_lm import MaskedLm
from cse.training.terms.momentum_queue import MomentumQueue
from cse.training.terms.mutual_information import MutualInformation
from cse.training.terms.nli_softmax import NliSoftmax
from cse.training.terms.nt_xent import NtXent
from cse.training.terms.of_labels import OfLabels
from cse.training.terms.of_views import OfViews
from cse.training.terms.replaced_tokens import ReplacedTokens
from cse.training.terms.self_guided import SelfGuided
from cse.training.terms.term import Term
from cse.training.tokens import TokenTable


@dataclass(frozen=True)
class Parts:
    """Everything a term is built from, besides its settings.

    Attributes:
        head: the backbone's MLM head; None if no term needs it.
        max_length: most tokens of a sentence.
        corrupted: folder of rows corrupted before training.
        sources: prepared rows of the sources, the main one first.
        bf16: whether the generator multiplies in bfloat16.
    """

    encoder: SentenceEncoder
    head: MlmHead | None
    table: TokenTable
    max_length: int
    seed: int
    epochs: int
    corrupted: Path
    sources: Sequence[PreparedData]
    device: torch.device
    bf16: bool


def losses_from(objective: ObjectiveSettings, parts: Parts, own: Sequence[Mapping[str, float]] = ()) -> Losses:
    """Build the whole loss.

    Args:
        own: for each source, the weights that replace those of terms.
    """
    return Losses({name: _term(name, settings, parts) for name, settings in objective.terms().items()}, own)


def _term(name: str, settings: LossSettings, parts: Parts) -> Term:
    """Build a term: by its row of ``TERMS``, or else by the equation ``cse.objectives.NAME.NAME``.

    That is one of the views, or, if the term reads labels, of embeddings and labels.
    """
    if name in TERMS:
        return TERMS[name](settings, parts)
    equation = getattr(import_module(f"cse.objectives.{name}"), name)
    return (OfLabels if settings.labels else OfViews)(parts.encoder, equation, **settings.model_dump())


def _by_value(term: Callable[..., Term]) -> Callable[[Any, Parts], Term]:
    """Return a builder that passes a term the encoder and its settings by name."""
    return lambda settings, parts: term(parts.encoder, **settings.model_dump())


def _nt_xent(settings: NtXentSettings, parts: Parts) -> NtXent:
    queue = None
    if settings.queue > 0:
        queue = MomentumQueue(
            parts.encoder,
            size=settings.queue,
            momentum=settings.momentum,
            follow_projector=settings.queue_projector == "following",
        )
    values = settings.model_dump(include={"weight", "temperature", "hard_negative_weight", "two_views"})
    return NtXent(parts.encoder, queue=queue, **values)


def _masked_lm(settings: MaskedLmSettings, parts: Parts) -> MaskedLm:
    encoder, head = parts.encoder, parts.head
    assert head is not None  # noqa: S101 - MaskedLmSettings.head is set
    if settings.train_head:
        head.untie(encoder.backbone.word_table)
    values = settings.model_dump(exclude={"train_head"})
    return MaskedLm(encoder, head, Vocabulary.of(encoder.backbone), seed=parts.seed, **values)


def _replaced_tokens(settings: ReplacedTokensSettings, parts: Parts) -> ReplacedTokens:
    source = source_from(
        settings,
        parts.encoder.backbone,
        parts.table,
        seed=parts.seed,
        epochs=parts.epochs,
        corrupted=parts.corrupted,
        device=parts.device,
        bf16=parts.bf16,
    )
    return ReplacedTokens(
        parts.encoder,
        source,
        weight=settings.weight,
        discriminator=settings.discriminator,
        condition=settings.condition,
        normalize=settings.normalize,
        separate_draw=settings.prompt_draw == "separate",
        learning_rate=settings.copy_learning_rate,
    )


def _distillation(settings: DistillationSettings, parts: Parts) -> Distillation:
    encoder = parts.encoder
    teachers = [] if settings.teacher == "folder" else [bare_teacher(encoder)]
    if settings.reads_folder:
        teachers += teachers_from(Path(settings.teacher_folder), encoder, longest=parts.max_length)
    return Distillation(encoder, teachers, weight=settings.weight, temperature=settings.temperature)


def _label_proxies(settings: LabelProxiesSettings, parts: Parts) -> LabelProxies:
    assert parts.table.labels is not None  # noqa: S101 - the settings allow this term only with labelled texts
    return LabelProxies(parts.encoder, int(parts.table.labels.max()) + 1, **settings.model_dump())


def _collection(settings: CollectionSettings, parts: Parts) -> Collection:
    made = collection_from(parts.encoder, parts.sources, settings)
    sizes = [len(data.train) for data in parts.sources]
    values = settings.model_dump(include={"weight", "temperature"})
    return Collection(parts.encoder, made.documents, made.targets, sizes, **values)


# by settings key: the terms that need more than the embeddings of a batch
TERMS: dict[str, Callable[[Any, Parts], Term]] = {
    "nt_xent": _nt_xent,
    "masked_lm": _masked_lm,
    "replaced_tokens": _replaced_tokens,
    "contrastive_tension": _by_value(ContrastiveTension),
    "self_guided": _by_value(SelfGuided),
    "mutual_information": _by_value(MutualInformation),
    "nli_softmax": _by_value(NliSoftmax),
    "distillation": _distillation,
    "label_proxies": _label_proxies,
    "collection": _collection,
}
