"""The sources that a training reads, what is refused of them, and their rows as token ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from cse.data.store import GROUP, VIEW_COLUMNS, PreparedData
from cse.errors import CseError, in_terms_of
from cse.files import fingerprint
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.seal import short
from cse.runtime.uses import text_of
from cse.settings import Settings
from cse.settings.objective import ObjectiveSettings
from cse.settings.train import TrainSettings
from cse.training.augment import second_text
from cse.training.batches import group_numbers, most_frequent, row_keys
from cse.training.tokens import TokenTable, shared_table, tokenise


@dataclass(frozen=True)
class TrainingSource:
    """A source of training rows, with ``weight`` batches for each batch of the main one."""

    key: str
    data: PreparedData
    objective: ObjectiveSettings
    weight: float


def sources_of(settings: Settings, data: PreparedData) -> list[TrainingSource]:
    """Return the sources that a training reads, the main one first; alone if nothing is trained."""
    objective, more = settings.objective, settings.data.more if settings.train.parameters != "none" else []
    further = [
        TrainingSource(f"data.more.{one.name}", data.of(one.name), objective.of_further(one.terms), one.weight)
        for one in more
    ]
    return [TrainingSource("data.train_path", data, objective, 1.0), *further]


def own_weights(settings: Settings) -> list[dict[str, float]]:
    """Return, for each source, the weights that replace those of terms on its batches."""
    everything = settings.objective.over(settings.data.more_terms).terms()
    main = {name: 0.0 for name in everything if name not in settings.objective.terms()}
    unread = {name: 0.0 for name, term in everything.items() if term.labels}
    return [main, *(main | terms | unread for terms in settings.data.more_terms)]


def table_of(settings: Settings, encoder: SentenceEncoder, source: TrainingSource, folder: Path | None) -> TokenTable:
    """Return the rows of a source as token ids, memory-mapped if launchers share them in a folder."""
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
        )
        if settings.train.distinct_batches:
            table = replace(table, keys=row_keys(rows))
        return replace(table, labels=group_numbers(rows)) if labels else table

    facts = {
        "tokenizers": [tokenizer.to_str() for tokenizer in tokenizers],
        "max_length": settings.train.max_length,
        "before": before,
        "views": copies,
        "mask_span": [settings.augment.mask_span, settings.train.seed] if settings.augment.mask_span else 0,
        "distinct_batches": settings.train.distinct_batches,
        "labels": labels,
    }
    made = make() if folder is None else shared_table(folder / fingerprint(facts, [source.data.rows_file]), make)
    return replace(made, weight=source.weight)


def check_sources(settings: Settings, sources: Sequence[TrainingSource]) -> None:
    """Refuse rows that were prepared for another objective, or too few: ``-s`` may override what they were made for."""
    if settings.train.parameters == "none":
        return
    main, *more = sources
    data = main.data
    for name, term in main.objective.terms().items():
        if data.view not in term.views or (term.labels and GROUP not in data.train.column_names):
            views = "categories" if term.labels else " or ".join(term.views)
            raise CseError(
                f"{data.folder}: contains {data.view}, but objective.{name} needs {term.rows}: set its weight to 0 "
                f"(-s objective.{name}.weight=0), or run `cse prepare` with data.view: {views}"
            )
    for source, wanted in zip(more, settings.data.more, strict=True):
        view = settings.data.of(wanted).rows
        if source.data.view != view:
            raise CseError(
                f"{source.key}: {source.data.rows_file} contains {source.data.view}, not {view}; run `cse prepare`"
            )
    for source in sources:
        rows, objective = len(source.data.train), source.objective
        if rows < objective.least_rows:  # the loss would always be 0
            where = data.folder if source is main else source.key
            raise CseError(
                f"{where}: contains {counted(rows, 'row')}, but objective.{objective.comparing[0]} uses other rows as "
                f"negatives; prepare at least {objective.least_rows}"
            )


def say_small(table: TokenTable, batch_size: int, what: str = "an epoch") -> None:
    """Say so if rows that may not meet make batches of ``what`` much smaller than asked for."""
    if table.keys is None:
        return
    most, usual = most_frequent(table.keys), math.ceil(len(table) / batch_size)
    if most > usual:
        click.echo(
            f"train.distinct_batches: {most:,} rows have the same label, document or text, so {what} has at least "
            f"{most:,} batches of about {len(table) / most:.0f} rows, not {usual:,} of {batch_size}",
            err=True,
        )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def texts_before(encoder: SentenceEncoder, roles: Sequence[str] | None, view: str) -> list[str]:
    """Return the task text that goes before each column of text, or an empty list."""
    if roles is None:
        return []
    columns = _columns(view)
    if len(roles) < len(columns):
        raise _wrong_number(roles, columns)
    with in_terms_of("train.roles: ", hint="; set backbone.texts"):
        return [text_of(role, encoder.texts) for role in roles][: len(columns)]


def check_roles(
    encoder: SentenceEncoder, roles: Sequence[str] | None, views: Sequence[str], *, max_length: int
) -> None:
    """Refuse roles that do not fit the source with the most columns, or texts that leave sentences less than half."""
    widest = max(views, key=lambda view: len(_columns(view)))
    for text in texts_before(encoder, roles, widest):
        taken = len(encoder.text_tokenizers.truncating_at(encoder.max_length).encode(text).ids) if text else 0
        if 2 * taken > max_length:
            raise CseError(
                f"train.max_length: the task text {short(text)} takes {taken} of its {max_length} tokens, special "
                f"tokens included, and the sentence needs at least half; raise it to {2 * taken} or shorten "
                "backbone.texts"
            )
    if roles is not None and len(roles) > len(_columns(widest)):
        raise _wrong_number(roles, _columns(widest))


def _columns(view: str) -> list[str]:
    return [name for name in VIEW_COLUMNS[view] if name != "label"]


def _wrong_number(roles: Sequence[str], columns: Sequence[str]) -> CseError:
    return CseError(f"train.roles: {len(roles)} roles for {len(columns)} columns of text ({', '.join(columns)})")


def set_widths(encoder: SentenceEncoder, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Let a model that is trained for shorter vectors offer them."""
    term = objective.matryoshka
    if term.weight == 0 or train.parameters == "none":
        return
    if max(term.widths) >= encoder.dimension:
        raise CseError(
            f"objective.matryoshka.widths: {max(term.widths)} is not below the {encoder.dimension} dimensions of the "
            "embedding"
        )
    encoder.widths = tuple(sorted(set(term.widths)))
