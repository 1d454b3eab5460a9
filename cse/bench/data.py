"""The rows that trainings share, made once."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cse.data.store import DOCUMENTS_FILE, REPORT_FILE, TRAIN_FILE, PreparedData, source_file
from cse.data.tasks.kinds import Task
from cse.data.tasks.store import write_tasks
from cse.settings import Settings
from cse.training import Folders

if TYPE_CHECKING:
    from cse.model.backbone import Backbone


@dataclass(frozen=True)
class DataFolders(Folders):
    """The folders of the rows, and what makes them."""

    @classmethod
    def below(cls, folder: Path, *, tokens: bool = False) -> DataFolders:
        """Return those that have a folder to themselves."""
        return cls(folder / "prepared", folder / "mined", folder / "corrupted", folder / "tokens" if tokens else None)

    def prepare(self, settings: Settings, *, backbone: Backbone | None = None) -> None:
        """Make them: prepare, mine, corrupt.

        Args:
            backbone: that mines, already open; None: open it.
        """
        # here, since the driver of a sweep does without torch
        from cse.stages.corrupt import corrupt_stage
        from cse.stages.mine import mine_stage
        from cse.stages.prepare import prepare_stage

        report = self.prepared.with_name("prepare.json")
        prepare_stage(settings, prepared=self.prepared, metrics=report, progress=sys.stderr.isatty())
        mine_stage(settings, prepared=self.prepared, mined=self.mined, backbone=backbone)
        corrupt_stage(settings, prepared=self.prepared, corrupted=self.corrupted)


def link_rows(prepared: Path, folder: Path, dev: Task | None) -> None:
    """Hard-link the training rows of prepared data into an empty folder, beside a task that chooses and no other."""
    data = PreparedData(prepared)
    documents = [] if data.documents is None else [DOCUMENTS_FILE]
    link_files(prepared, folder, (TRAIN_FILE, *map(source_file, data.sources), *documents, REPORT_FILE))
    write_tasks(folder, dev=dev)


def link_files(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Hard-link files into a folder; on another disk, copy them."""
    for name in names:
        try:
            os.link((source / name).resolve(), folder / name)
        except OSError:
            shutil.copyfile(source / name, folder / name)
