"""A training that is ready to run under any launcher."""

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

from cse.data.store import PreparedData
from cse.data.tasks.kinds import Task, put_before
from cse.data.tasks.store import open_dev
from cse.errors import CseError
from cse.evaluation.dev import score_dev
from cse.evaluation.dev_facts import SPEARMAN, DevScore
from cse.evaluation.tasks.score import dev_measure
from cse.files import fingerprint
from cse.model.backbone import Backbone
from cse.model.mlm_head import MlmHead, load_mlm_head
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import StaticWords
from cse.settings import Settings
from cse.settings.groups.objective import ObjectiveSettings
from cse.settings.groups.train import TrainSettings
from cse.stages.build.encoder import encoder_from
from cse.stages.build.losses import Parts, losses_from
from cse.stages.build.plan import plan_from, second_text_from
from cse.stages.common import MINED, training_code
from cse.stages.fitting import check_post, open_backbone
from cse.stages.inputs import training_inputs
from cse.stages.mined import rows_to_train
from cse.stages.uses import set_widths, texts_before
from cse.training.batches import most_frequent, row_keys
from cse.training.group import ALONE, Group
from cse.training.loop import take_best, train
from cse.training.memory import OutOfMemory, is_out_of_memory
from cse.training.observers import Observer
from cse.training.precision import choose_bf16, choose_device
from cse.training.state import RunFolder, RunState
from cse.training.tokens import TokenTable, shared_table, tokenise

GROUPS = ("mine", "backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train")
DEV_BATCH = 64  # sentences


@dataclass(frozen=True)
class Training:
    """A training that is ready to run under any launcher.

    Attributes:
        settings: the given settings.
        prepared, mined, corrupted: folders of the rows.
        encoder: the newly initialised encoder.
        head: the backbone's MLM head; None if no term needs it.
        data: the rows and dev pairs; nothing else in it is read.
        device: training device.
        bf16: whether matrix products run in bfloat16.
        folder: saved state for resuming a killed run, named by a fingerprint of settings, data, models and code.
        tokens: folder where launchers share tokenised rows; None: each process tokenises its own.
    """

    settings: Settings
    prepared: Path
    mined: Path
    corrupted: Path
    encoder: SentenceEncoder
    head: MlmHead | None
    data: PreparedData
    device: torch.device
    bf16: bool
    folder: RunFolder
    tokens: Path | None

    @cached_property
    def dev(self) -> Task | None:
        """What selects the checkpoint: scored pairs or another task; None if nothing was prepared."""
        return open_dev(self.data)

    @property
    def measure(self) -> str:
        """The measure that selects the checkpoint; Spearman without a dev task.

        Raises:
            CseError: the dev task has no measure of the name in ``train.dev_measure``, or there is none.
        """
        wanted = self.settings.train.dev_measure
        if self.dev is not None:
            return dev_measure(self.dev, wanted, "train.dev_measure")
        if wanted is not None:
            raise CseError(f"train.dev_measure: {wanted!r}, but there is no dev task; set data.dev_path, or null here")
        return SPEARMAN

    def table(self) -> TokenTable:
        """Return the training rows as token ids; shared rows are memory-mapped."""
        settings, encoder = self.settings, self.encoder
        before = texts_before(encoder, settings.train.roles, self.data.view)
        tokenizers = [encoder.tokenizer_of_view(view, training=True) for view in range(max(len(encoder.templates), 1))]

        def make() -> TokenTable:
            table = tokenise(
                self.data.train,
                self.data.view,
                tokenizers,
                max_length=settings.train.max_length,
                pad_id=encoder.backbone.pad_id,
                views=settings.objective.copies,
                before=before,
                second_text=second_text_from(settings.augment, encoder.backbone, settings.train.seed),
                progress=sys.stderr.isatty(),
            )
            return replace(table, keys=row_keys(self.data.train)) if settings.train.distinct_batches else table

        if self.tokens is None:
            return make()
        facts = {
            "tokenizers": [tokenizer.to_str() for tokenizer in tokenizers],
            "max_length": settings.train.max_length,
            "before": before,
            "views": settings.objective.copies,
            "mask_span": [settings.augment.mask_span, settings.train.seed] if settings.augment.mask_span else 0,
        }
        if settings.train.distinct_batches:
            facts["distinct_batches"] = True
        return shared_table(self.tokens / fingerprint(facts, [self.data.rows_file]), make)

    def run(self, observer: Observer, group: Group = ALONE) -> RunState:
        """Train, or resume a killed run, and leave the best weights in the encoder.

        Raises:
            CseError: something a loss term needs is missing, or the loss is no longer finite.
            OutOfMemory: a batch does not fit into memory.
            Interrupted: a signal arrived; the state is saved.
        """
        settings, encoder, dev, table = self.settings, self.encoder, self.dev, self.table()
        seed, epochs = settings.train.seed, settings.train.epochs
        if group.rank == 0:
            _say_small(table, settings.train.batch_size)
        parts = Parts(encoder, self.head, table, seed, epochs, self.corrupted, self.device)
        try:
            return train(
                encoder,
                losses_from(settings.objective, parts),
                table,
                plan_from(settings.train, settings.augment, encoder.backbone, bf16=self.bf16),
                dev=None if dev is None else lambda: self.score(dev),
                choose=bool(settings.objective.comparing),
                folder=self.folder,
                observer=observer,
                device=self.device,
                group=group,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            at_once = settings.train.mini_batch_size or len(table.columns) * settings.train.batch_size
            raise OutOfMemory(
                f"train.mini_batch_size: out of memory ({self.device.type}) with {at_once} sentences at once; set it "
                f"to {max(at_once // 2, 1)} or less (same gradients, a third slower), or lower train.batch_size"
            ) from None

    def score(self, dev: Task) -> float:
        """Return the score that selects checkpoints, times 100, encoded as ``train.selection`` says."""
        before = texts_before(self.encoder, self.settings.train.roles, self.data.view)
        if before:  # a dev pair is one row's first two texts; in a row of one text, both are alike
            dev = put_before(dev, before[0], before[min(1, len(before) - 1)])
        as_in_training = self.settings.train.selection == "training"
        with self.encoder.read_as_in_training() if as_in_training else nullcontext():
            return score_dev(self.encoder, dev, DEV_BATCH, self.measure).value

    def score_at_inference(self) -> DevScore | None:
        """Return the reported dev score; None without a dev task."""
        return None if self.dev is None else score_dev(self.encoder, self.dev, DEV_BATCH, self.measure)

    def take_over(self) -> RunState:
        """Load the best weights that a launcher's workers saved into the encoder and return their last state.

        Raises:
            CseError: no state was saved.
        """
        state = self.folder.load()
        if state is None:
            raise CseError(
                f"{self.folder.path}: the workers saved no state; is it on a disk that all of them can access?"
            )
        take_best(self.encoder, state)
        return state


def open_training(
    settings: Settings,
    *,
    prepared: Path,
    corrupted: Path,
    scratch: Path,
    mined: Path = MINED,
    backbone: Backbone | StaticWords | None = None,
    tokens: Path | None = None,
    folder: Path | None = None,
) -> Training:
    """Build everything a training needs.

    Args:
        settings: what to train.
        prepared: folder of the rows.
        corrupted: folder of rows corrupted before training.
        scratch: parent of the run's folder.
        mined: folder of the triplets mined from the rows; read if anything is mined.
        backbone: a backbone that is already open; None: open it.
        tokens: folder for shared tokenised rows.
        folder: the run's folder, if a launcher has chosen it.

    Raises:
        CseError: the rows were prepared for another objective, or the backbone, its head or the GPU is missing.
    """
    data = rows_to_train(
        settings.mine, settings.backbone, settings.pooler.kind, settings.train.roles, prepared=prepared, mined=mined
    )
    _check_view(data, settings.objective, settings.train)
    _check_rows(data, settings.objective, settings.train)
    _check_early_stop(settings.objective, settings.train)
    backbone = backbone or open_backbone(settings.backbone, settings.pooler, data)
    device = choose_device(settings.train.device)
    bf16 = choose_bf16(settings.train.precision, device)
    encoder = encoder_from(
        backbone, settings.prompt, settings.template, settings.pooler, settings.augment, settings.train
    )
    set_widths(encoder, settings.objective, settings.train)
    texts_before(encoder, settings.train.roles, data.view)  # refuses unknown roles
    check_post(encoder, settings.post)
    wanted = [] if settings.train.parameters == "none" else settings.objective.needing_head
    head = None
    if wanted and isinstance(backbone, Backbone):
        head = load_mlm_head(backbone, wanted_by=f"objective.{wanted[0]}.weight")
    if folder is None:
        facts = {
            "settings": groups_of(settings),
            "inputs": training_inputs(
                settings.backbone,
                settings.prompt,
                None if settings.train.parameters == "none" else settings.objective.replaced_tokens,
                opened=backbone.files,
            ),
            "device": device.type,
            "bf16": bf16,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        rows = [*sorted({*prepared.glob("*.arrow"), data.rows_file}), *sorted(corrupted.glob("*.npy"))]
        run = fingerprint(facts, [*rows, *training_code()])
        folder = scratch / "resume" / run
    if settings.train.workers > 1 and tokens is None:
        tokens = scratch / "tokens"
    state = RunFolder(folder)
    training = Training(settings, prepared, mined, corrupted, encoder, head, data, device, bf16, state, tokens)
    _ = training.measure  # refuses an unknown one
    return training


def _say_small(table: TokenTable, batch_size: int) -> None:
    """Say so if rows that may not meet make batches much smaller than asked for."""
    if table.keys is None:
        return
    most, usual = most_frequent(table.keys), math.ceil(len(table) / batch_size)
    if most > usual:
        click.echo(
            f"train.distinct_batches: {most:,} rows have the same label, document or text, so an epoch has at least "
            f"{most:,} batches of about {len(table) / most:.0f} rows, not {usual:,} of {batch_size}",
            err=True,
        )


def _check_view(data: PreparedData, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Refuse rows prepared for another objective: ``cse train -s`` may override the settings of ``prepare``."""
    for name, term in objective.terms().items():
        if train.parameters != "none" and data.view not in term.views:
            raise CseError(
                f"{data.folder}: contains {data.view}, but objective.{name} needs {term.rows}: set its weight to 0 "
                f"(-s objective.{name}.weight=0), or run `cse prepare` with data.view: {' or '.join(term.views)}"
            )


def _check_rows(data: PreparedData, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Refuse too few rows to provide negatives: the loss would always be 0."""
    if train.parameters != "none" and len(data.train) < objective.least_rows:
        raise CseError(
            f"{data.folder}: contains {counted(len(data.train), 'row')}, but objective."
            f"{objective.comparing[0]} uses other rows as negatives; prepare at least {objective.least_rows}"
        )


def _check_early_stop(objective: ObjectiveSettings, train: TrainSettings) -> None:
    if train.early_stop is not None and train.parameters != "none" and not objective.comparing:
        raise CseError(
            f"train.early_stop: objective.{objective.first} compares no sentences, so the dev score cannot stop "
            "this training; set it to null"
        )


def groups_of(settings: Settings) -> dict[str, Any]:
    """Return the groups of settings that affect training, as JSON values."""
    groups = {name: getattr(settings, name).model_dump(mode="json") for name in GROUPS}
    if groups["train"]["dev_measure"] is None:
        del groups["train"]["dev_measure"]  # as in checkpoints from before there was a choice
    return groups


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
