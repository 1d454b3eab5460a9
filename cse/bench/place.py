"""The place of one training: what it makes there, and how it is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from cse.bench.data import DataFolders
from cse.evaluation.dev_facts import DevScore, dev_of
from cse.model.backbone import Backbone
from cse.model.static_words import StaticWords
from cse.runtime.kept_vectors import KeptVectors
from cse.settings import Settings
from cse.stages.common import SCRATCH
from cse.stages.train import launched, train_stage
from cse.training.observers import CsvLog, Observer, Observers
from cse.training.ready import Training
from cse.training.state import RunState

Watch = Callable[[Training], Sequence[Observer]]


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
        data: DataFolders,
        *,
        scratch: Path = SCRATCH,
        plots: Path | None = None,
        backbone: Backbone | StaticWords | None = None,
        watch: Watch | None = None,
        kept: KeptVectors | None = None,
        say: Callable[..., object] = click.echo,
    ) -> dict[str, Any]:
        """Train here, or resume a killed training of the same settings, rows and code.

        Args:
            plots: folder of its curves, if not the usual one.
            backbone: already open; None: open it.
            watch: returns who observes the training in place of the terminal and TensorBoard.
            kept: has the vectors of the bare backbone.
            say: prints what stage ``train`` says.

        Returns:
            Facts of the run, as stored in the checkpoint.
        """
        return train_stage(
            settings,
            prepared=data.prepared,
            mined=data.mined,
            corrupted=data.corrupted,
            checkpoint=self.checkpoint,
            metrics=self.metrics,
            plots=plots or self.plots,
            scratch=scratch,
            launch=partial(_watched, watch) if watch else launched,
            backbone=backbone,
            tokens=data.tokens,
            kept=kept,
            say=say,
        )

    def dev(self) -> DevScore | None:
        """Return the dev score of the trained model; None if nothing selected it."""
        return dev_of(json.loads(self.metrics.read_text(encoding="utf-8")))


def _watched(watch: Watch, training: Training) -> RunState:
    """Run a training with its curves and further observers."""
    return training.run(Observers([CsvLog(training.folder.path / "plots", training.measure), *watch(training)]))
