"""The sources that a training reads, each with its own loss, and their rows as token ids."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cse.data.store import GROUP, PreparedData
from cse.files import fingerprint
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings import Settings
from cse.settings.objective import ObjectiveSettings
from cse.stages.uses import texts_before
from cse.training.augment import second_text
from cse.training.batches import group_numbers, row_keys
from cse.training.tokens import TokenTable, shared_table, tokenise


@dataclass(frozen=True)
class TrainingSource:
    """A source of training rows.

    Attributes:
        weight: its batches for each batch of the main source.
    """

    key: str
    data: PreparedData
    objective: ObjectiveSettings
    weight: float


def sources_of(settings: Settings, data: PreparedData) -> list[TrainingSource]:
    """Return the sources that a training reads, the main one first; alone if nothing is trained.

    Args:
        settings: group ``data`` names the further ones.
    """
    objective = settings.objective
    return [
        TrainingSource("data.train_path", data, objective, 1.0),
        *(
            TrainingSource(
                f"data.more.{source.name}",
                data.of(source.name),
                objective.of_further(source.terms),
                source.weight,
            )
            for source in (settings.data.more if settings.train.parameters != "none" else ())
        ),
    ]


def own_weights(settings: Settings) -> list[dict[str, float]]:
    """Return, for each source, the weights that replace those of terms on its batches."""
    everything = settings.objective.over(settings.data.more_terms).terms()
    main = {name: 0.0 for name in everything if name not in settings.objective.terms()}
    unread = {name: 0.0 for name, term in everything.items() if term.labels}
    return [main, *(main | terms | unread for terms in settings.data.more_terms)]


def tables_of(
    settings: Settings, encoder: SentenceEncoder, sources: Sequence[TrainingSource], folder: Path | None
) -> list[TokenTable]:
    """Return the rows of each source as token ids.

    Args:
        sources: from ``sources_of``.
        folder: folder where launchers share tokenised rows, which are then memory-mapped; None: not shared.
    """
    return [replace(_table(settings, encoder, source, folder), weight=source.weight) for source in sources]


def _table(settings: Settings, encoder: SentenceEncoder, source: TrainingSource, folder: Path | None) -> TokenTable:
    rows, view, copies = source.data.train, source.data.view, source.objective.copies
    labels = source.objective.needs_labels and GROUP in rows.column_names
    before = texts_before(encoder, settings.train.roles, view)
    tokenizers = [encoder.tokenizer_of_view(number, training=True) for number in range(max(len(encoder.templates), 1))]

    def make() -> TokenTable:
        table = tokenise(
            rows,
            view,
            tokenizers,
            max_length=settings.train.max_length,
            pad_id=encoder.backbone.pad_id,
            views=copies,
            before=before,
            second_text=second_text(settings.augment, encoder.backbone, settings.train.seed),
            progress=sys.stderr.isatty(),
        )
        if settings.train.distinct_batches:
            table = replace(table, keys=row_keys(rows))
        return replace(table, labels=group_numbers(rows)) if labels else table

    if folder is None:
        return make()
    facts = {
        "tokenizers": [tokenizer.to_str() for tokenizer in tokenizers],
        "max_length": settings.train.max_length,
        "before": before,
        "views": copies,
        "mask_span": [settings.augment.mask_span, settings.train.seed] if settings.augment.mask_span else 0,
    }
    if settings.train.distinct_batches:
        facts["distinct_batches"] = True
    if labels:
        facts["labels"] = True
    return shared_table(folder / fingerprint(facts, [source.data.rows_file]), make)
