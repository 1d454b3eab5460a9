"""The rows of an adaptation in its folder: made, counted, and what they hold to measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cse.data.store import PreparedData
from cse.data.tasks.kinds import kind_of
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.evaluation.tasks.score import MEASURES
from cse.settings import Settings
from cse.settings.spaces import settings_with
from cse.stages.corrupt import corrupt_stage
from cse.stages.mine import mine_stage
from cse.stages.mined import rows_to_train
from cse.stages.prepare import prepare_stage
from cse.tune.job import steps_of


@dataclass(frozen=True)
class Rows:
    """The rows of an adaptation.

    Attributes:
        folder: of the adaptation.
    """

    folder: Path

    @property
    def prepared(self) -> Path:
        """The folder of the rows, and of what is measured."""
        return self.folder / "prepared"

    @property
    def mined(self) -> Path:
        """The folder of the rows mined from them, if any are."""
        return self.folder / "mined"

    @property
    def corrupted(self) -> Path:
        """The folder of the rows corrupted before training, if any are."""
        return self.folder / "corrupted"

    def prepare(self, settings: Settings) -> None:
        """Make them."""
        prepare_stage(settings, prepared=self.prepared, metrics=self.folder / "prepare.json")
        mine_stage(settings, prepared=self.prepared, mined=self.mined)
        corrupt_stage(settings, prepared=self.prepared, corrupted=self.corrupted)

    def steps(self, settings: Settings, epochs: int) -> int:
        """Return the updates of a training of so many epochs."""
        mine, backbone, pooler, roles = settings.mine, settings.backbone, settings.pooler.kind, settings.train.roles
        data = rows_to_train(mine, backbone, pooler, roles, prepared=self.prepared, mined=self.mined)
        settings = settings_with(settings, {"train.epochs": epochs})
        return steps_of(settings, len(data.train), data.rows_file, self.prepared)

    def select(self, settings: Settings) -> bool:
        """Return whether a dev score tells good weights from bad ones."""
        comparing = bool(settings.objective.over(settings.data.more_terms).comparing)
        return comparing and open_dev(PreparedData(self.prepared)) is not None

    def main_measure(self) -> tuple[str, str] | None:
        """Return the user's first task and its main measure; None without a task."""
        tasks = open_tasks(PreparedData(self.prepared), OWN)
        return (tasks[0].name, MEASURES[kind_of(tasks[0])][0]) if tasks else None
