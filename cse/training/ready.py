"""A training that is ready to run under any launcher: its sources, and what it depends on beside settings and rows."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import torch

from cse.artifact import sha256
from cse.data.store import GROUP, PreparedData
from cse.data.tasks.kinds import Task, put_before
from cse.data.tasks.store import TASKS_FILE, open_dev
from cse.errors import CseError, counted
from cse.evaluation.dev_facts import SPEARMAN, DevScore
from cse.evaluation.score import dev_measure, score_dev
from cse.files import fingerprint
from cse.losses.group import ALONE, Group
from cse.model.backbone import Backbone
from cse.model.backbone_files import BackboneFiles
from cse.model.checkpoint import WEIGHTS_FILE
from cse.model.device import choose_bf16, choose_device, is_out_of_memory
from cse.model.mlm_head import MlmHead, find_generator, load_mlm_head
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.kept_vectors import KeptVectors
from cse.settings import Settings
from cse.settings.objective import ObjectiveSettings
from cse.training import training_code
from cse.training.augment import second_text
from cse.training.batch import TokenTable, tokenise
from cse.training.batches import group_numbers, row_keys, rows_by_key
from cse.training.corruption import check_generator
from cse.training.encoder import (
    check_copies,
    check_roles,
    encoder_from,
    files_of_backbone,
    open_backbone,
    set_widths,
    texts_before,
)
from cse.training.fit_post import check_post
from cse.training.loop import train
from cse.training.losses import losses_from, teachers_content
from cse.training.observers import Observer, watchers
from cse.training.state import RunFolder, RunState

GROUPS = ("data", "mine", "backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train")
DEV_BATCH = 64  # sentences


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a launcher runs.

    Attributes:
        data: the rows and dev pairs; nothing else in it is read.
        sources: of training rows, the main one first.
        folder: saved state for resuming a killed run, named by a fingerprint of settings, data, models and code.
    """

    settings: Settings
    data: PreparedData
    sources: list[TrainingSource]
    encoder: SentenceEncoder
    head: MlmHead | None
    device: torch.device
    bf16: bool
    folder: RunFolder

    @cached_property
    def dev(self) -> Task | None:
        """What selects the checkpoint: scored pairs or another task; None if nothing was prepared."""
        return open_dev(self.data)

    @property
    def measure(self) -> str:
        """The measure that selects the checkpoint; Spearman without a dev task."""
        wanted = self.settings.train.dev_measure
        if self.dev is not None:
            return dev_measure(self.dev, wanted, "train.dev_measure")
        if wanted is not None:
            raise CseError(f"train.dev_measure: {wanted!r}, but there is no dev task; set data.dev_path, or null here")
        return SPEARMAN

    @property
    def objective(self) -> ObjectiveSettings:
        """The loss with every term that some source trains."""
        return self.settings.objective.over(self.settings.data.more_terms)

    def tables(self) -> list[TokenTable]:
        """Return the training rows of each source as token ids."""
        return [table_of(self.settings, self.encoder, source) for source in self.sources]

    def run(self, observer: Observer, group: Group = ALONE) -> RunState:
        """Train, or resume a killed run, and leave the best weights in the encoder; see ``train``."""
        settings, dev, tables = self.settings, self.dev, self.tables()
        if group.rank == 0:
            for source, each in zip(self.sources, tables, strict=True):
                say_small(each, settings.train.batch_size, source)
        try:
            losses = losses_from(
                self.objective,
                self.encoder,
                settings.train,
                tables[0],
                own=[{name: term.weight for name, term in source.objective} for source in self.sources],
                head=self.head,
                device=self.device,
                bf16=self.bf16,
            )
            return train(
                self.encoder,
                losses,
                tables,
                settings.train,
                augment=settings.augment,
                bf16=self.bf16,
                dev=None if dev is None else lambda: self.score(dev),
                choose=bool(self.objective.comparing),
                folder=self.folder,
                observer=observer,
                device=self.device,
                group=group,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            views = max(len(table.columns) for table in tables)
            at_once = settings.train.mini_batch_size or views * settings.train.batch_size
            raise CseError(
                f"train.mini_batch_size: out of memory ({self.device.type}) with {at_once} sentences at once; set it "
                f"to {max(at_once // 2, 1)} or less (same gradients, a third slower), or lower train.batch_size"
            ) from None

    def score(self, dev: Task) -> float:
        """Return the score that selects checkpoints, times 100, encoded as ``train.selection`` says."""
        as_in_training = self.settings.train.selection == "training"
        with self.encoder.read_as_in_training() if as_in_training else nullcontext():
            return self.score_at_inference(self._in_roles(dev)).value

    @property
    def chooses_otherwise(self) -> bool:
        """Whether checkpoints are chosen by another reading of the dev task than the one reported."""
        return self.dev is not None and (
            self.settings.train.selection == "training" or self._in_roles(self.dev) is not self.dev
        )

    def _in_roles(self, dev: Task) -> Task:
        """Return pairs with the task texts of ``train.roles``: a dev pair is one row's first two texts."""
        before = texts_before(self.encoder, self.settings.train.roles, self.data.view)
        # in a row of one text, both are alike
        return put_before(dev, before[0], before[min(1, len(before) - 1)]) if any(before) else dev

    def score_at_inference(self, dev: Task) -> DevScore:
        """Return the reported dev score, read as by ``cse evaluate`` and the gate."""
        return score_dev(self.encoder, dev, DEV_BATCH, self.measure, progress=sys.stderr.isatty())

    def watchers(self) -> Observer:
        """Return the observers of a run in this process."""
        return watchers(self.folder.path, groups_of(self.settings), self.measure)


def open_training(
    settings: Settings,
    prepared: Path,
    *,
    scratch: Path,
    folder: Path | None = None,
    kept: KeptVectors | None = None,
) -> Training:
    """Build everything a training needs, in the run's ``folder`` if a launcher has chosen one.

    ``kept`` has the vectors of the bare backbone, where it is the side of documents.
    """
    data = PreparedData(prepared)
    objective, sources = settings.objective.over(settings.data.more_terms), sources_of(settings, data)
    backbone = open_backbone(settings.backbone, settings.pooler, data)
    device = choose_device(settings.train.device)
    bf16 = choose_bf16(settings.train.precision, device)
    encoder = encoder_from(backbone, settings)
    encoder.kept = kept
    if settings.augment.repeat_words > 0 and isinstance(backbone, Backbone):
        _ = backbone.special_ids  # refuses a tokenizer without them
    set_widths(encoder, objective, settings.train)
    views = [source.data.view for source in sources]
    check_roles(encoder, settings.train.roles, views, max_length=settings.train.max_length)
    check_post(encoder, settings.post, data)
    head = None
    if settings.train.parameters != "none":
        if objective.nt_xent.weight > 0.0 or objective.matryoshka.weight > 0.0:
            check_copies(encoder, settings, views)
        wanted = next((name for name, term in objective.terms().items() if term.head), None)
        if wanted is not None and isinstance(backbone, Backbone):
            head = load_mlm_head(backbone, wanted_by=f"objective.{wanted}.weight")
    if folder is None:
        facts = {
            "settings": groups_of(settings),
            "threads": torch.get_num_threads(),
            **depends_on(settings, opened=backbone.files),
        }
        rows = sorted({*prepared.glob("*.arrow"), prepared / TASKS_FILE})
        folder = scratch / "resume" / fingerprint(facts, rows)
    training = Training(
        settings=settings,
        data=data,
        sources=sources,
        encoder=encoder,
        head=head,
        device=device,
        bf16=bf16,
        folder=RunFolder(folder),
    )
    _ = training.measure  # refuses an unknown one
    return training


# ---- sources ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingSource:
    """A source of training rows, with ``weight`` batches for each batch of the main one.

    Attributes:
        objective: the loss of its batches.
    """

    key: str
    data: PreparedData
    objective: ObjectiveSettings
    weight: float


def sources_of(settings: Settings, data: PreparedData) -> list[TrainingSource]:
    """Return the sources that a training reads, the main one first; alone if nothing is trained.

    Rows that were prepared for another objective, or too few, are refused: ``-s`` may override what they were made for.
    """
    main = TrainingSource("data.train_path", data, settings.objective, 1.0)
    if settings.mine.neighbours and data.view != "pairs":
        raise CseError(f"{data.folder}: contains {data.view}, but mine.neighbours asks for pairs; run `cse prepare`")
    if settings.train.parameters == "none":
        return [main]
    for name, term in main.objective.terms().items():
        if data.view not in term.views or (term.labels and GROUP not in data.train.column_names):
            views = "categories" if term.labels else " or ".join(term.views)
            raise CseError(
                f"{data.folder}: contains {data.view}, but objective.{name} needs {term.rows}: set its weight to 0 "
                f"(-s objective.{name}.weight=0), or run `cse prepare` with data.view: {views}"
            )
    found = [main]
    for wanted in settings.data.more:
        key, rows, view = f"data.more.{wanted.name}", data.of(wanted.name), settings.data.of(wanted).rows
        if rows.view != view:
            raise CseError(f"{key}: {rows.rows_file} contains {rows.view}, not {view}; run `cse prepare`")
        found.append(TrainingSource(key, rows, settings.objective.of_further(wanted.terms), wanted.weight))
    for source in found:
        count, objective = len(source.data.train), source.objective
        if count < objective.least_rows:  # the loss would always be 0
            raise CseError(
                f"{data.folder if source is main else source.key}: contains {counted(count, 'row')}, but "
                f"objective.{objective.comparing[0]} uses other rows as negatives; prepare at least "
                f"{objective.least_rows}"
            )
    return found


def table_of(settings: Settings, encoder: SentenceEncoder, source: TrainingSource) -> TokenTable:
    """Return the rows of a source as token ids."""
    rows, train = source.data.train, settings.train
    labels = any(term.labels for term in source.objective.terms().values()) and GROUP in rows.column_names
    table = tokenise(
        rows,
        source.data.view,
        [encoder.tokenizer_of_view(number, training=True) for number in range(max(len(encoder.templates), 1))],
        max_length=train.max_length,
        pad_id=encoder.backbone.pad_id,
        views=source.objective.copies,
        before=texts_before(encoder, train.roles, source.data.view),
        second_text=second_text(settings.augment, encoder.backbone, train.seed),
    )
    keys = row_keys(rows) if train.distinct_batches else None
    return replace(table, keys=keys, labels=group_numbers(rows) if labels else table.labels, weight=source.weight)


def say_small(table: TokenTable, batch_size: int, source: TrainingSource) -> None:
    """Say so if rows that may not meet make batches much smaller than asked for."""
    if table.keys is None:
        return
    most, usual = int(rows_by_key(table.keys).max(initial=0)), math.ceil(len(table) / batch_size)
    if most > usual:
        what = f"a pass over {source.key}" if source.key.startswith("data.more") else "an epoch"
        click.echo(
            f"train.distinct_batches: {most:,} rows have the same label, document or text, so {what} has at least "
            f"{most:,} batches of about {len(table) / most:.0f} rows, not {usual:,} of {batch_size}",
            err=True,
        )


# ---- what it depends on -------------------------------------------------------------------------------------------


def groups_of(settings: Settings) -> dict[str, Any]:
    """Return the groups of settings that affect training, as JSON values."""
    groups = {name: getattr(settings, name).model_dump(mode="json") for name in GROUPS if name != "data"}
    more = settings.data.more_in_training
    return groups | ({"data": {"more": more}} if more else {})


def depends_on(settings: Settings, *, opened: BackboneFiles | None = None) -> dict[str, str]:
    """Return what a training depends on beside its settings and rows, each in words: models, code, arithmetic.

    Files ``opened`` already are not hashed again.
    """
    device = choose_device(settings.train.device)
    facts = {
        "the backbone's files": (opened or files_of_backbone(settings.backbone)).content(),
        "the code": fingerprint({}, training_code()),
        "torch": torch.__version__,
        "device": device.type,
        "precision": "bf16" if choose_bf16(settings.train.precision, device) else "fp32",
    }
    prompt, objective = settings.prompt, settings.objective.over(settings.data.more_terms)
    if prompt.kind != "none" and prompt.init == "checkpoint":
        start = Path(prompt.init_checkpoint) / WEIGHTS_FILE
        try:
            facts["the initial prompt"] = sha256(start)
        except OSError as error:
            raise CseError(
                f"prompt.init_checkpoint: {start}: {error.strerror}; train a prompt there first, or name the folder of "
                "a checkpoint"
            ) from None
    if settings.train.parameters != "none" and objective.replaced_tokens.reads_generator:
        check_generator(objective.replaced_tokens)
        facts["the generator"] = find_generator(objective.replaced_tokens.generator_model).content()
    if settings.train.parameters != "none" and objective.distillation.reads_folder:
        facts["the teachers of its distillation"] = teachers_content(Path(objective.distillation.teacher_folder))
    return facts
