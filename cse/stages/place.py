"""A training with a folder to itself (a trial, a domain, an adaptation): its rows, place and length."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from cse.data.store import DOCUMENTS_FILE, REPORT_FILE, TRAIN_FILE, PreparedData, open_rows, source_file
from cse.data.tasks.kinds import Task
from cse.data.tasks.store import write_tasks
from cse.evaluation.dev_facts import DevScore, dev_of
from cse.runtime.kept_vectors import KeptVectors
from cse.settings import Settings
from cse.stages.common import SCRATCH
from cse.stages.train import launched, train_stage
from cse.training.batches import Mixture, RowOrder, row_keys
from cse.training.observers import CsvLog, Observer
from cse.training.ready import Training
from cse.training.state import RunState

Watch = Callable[[Training], Sequence[Observer]]


# ---- rows -----------------------------------------------------------------------------------------------------------


def link_rows(prepared: Path, folder: Path, dev: Task | None) -> None:
    """Hard-link the training rows of prepared data into an empty folder, beside a task that chooses and no other.

    On another disk, copy them.
    """
    data = PreparedData(prepared)
    documents = [] if data.documents is None else [DOCUMENTS_FILE]
    for name in (TRAIN_FILE, *map(source_file, data.sources), *documents, REPORT_FILE):
        try:
            os.link((prepared / name).resolve(), folder / name)
        except OSError:
            shutil.copyfile(prepared / name, folder / name)
    write_tasks(folder, dev=dev)


def steps_of(settings: Settings, prepared: Path) -> int:
    """Return the updates of a whole training; where batches depend on the rows, that reads them."""
    train = settings.train
    further = [(source_file(source.name), source.weight) for source in settings.data.more]
    opened = [(open_rows(prepared / file), weight) for file, weight in ((TRAIN_FILE, 1.0), *further)]
    orders = [RowOrder(len(rows), row_keys(rows) if train.distinct_batches else None, w) for rows, w in opened]
    steps = Mixture(orders, batch_size=train.batch_size, epochs=train.epochs, seed=train.seed).steps
    return min(steps, train.max_steps or steps)


def spacing(steps: int, times: int) -> int:
    """Return the updates from one evaluation to the next, for so many of them in all."""
    return max(math.ceil(steps / times), 1)


# ---- the training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a training keeps what it makes."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        """The folder of the model."""
        return self.folder / "checkpoint"

    @property
    def metrics(self) -> Path:
        """The file of its dev scores and facts."""
        return self.folder / "train.json"

    @property
    def plots(self) -> Path:
        """The folder of its curves."""
        return self.folder / "plots"

    def train(
        self,
        settings: Settings,
        prepared: Path,
        *,
        scratch: Path = SCRATCH,
        plots: Path | None = None,
        watch: Watch | None = None,
        kept: KeptVectors | None = None,
        say: Callable[..., object] = click.echo,
    ) -> dict[str, Any]:
        """Train here, or resume a killed training of the same settings, rows and code.

        Args:
            plots: folder of its curves, if not the usual one.
            watch: returns who observes the training in place of the terminal and TensorBoard.
            kept: has the vectors of the bare backbone.
            say: prints what stage ``train`` says.

        Returns:
            Facts of the run, as stored in the checkpoint.
        """
        return train_stage(
            settings,
            prepared=prepared,
            checkpoint=self.checkpoint,
            metrics=self.metrics,
            plots=plots or self.plots,
            scratch=scratch,
            launch=partial(_watched, watch) if watch else launched,
            kept=kept,
            say=say,
        )

    def dev(self) -> DevScore | None:
        """Return the dev score of the trained model; None if nothing selected it."""
        return dev_of(json.loads(self.metrics.read_text(encoding="utf-8")))


def _watched(watch: Watch, training: Training) -> RunState:
    """Run a training with its curves and further observers."""
    return training.run(Observer(CsvLog(training.folder.path / "plots", training.measure), *watch(training)))
