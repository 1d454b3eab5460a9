"""The rows that trainings share: made once, and how many steps a training on them has."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cse.data.store import TRAIN_FILE, join_rows, open_rows, source_file
from cse.data.tasks.kinds import Task, held_out_texts
from cse.settings import Settings
from cse.settings.spaces import settings_with

if TYPE_CHECKING:
    from cse.model.backbone import Backbone
    from cse.model.static_words import StaticWords


@dataclass(frozen=True)
class DataFolders:
    """The folders of the rows.

    Attributes:
        prepared: the rows, and what is measured.
        mined: those mined from them, if any are.
        corrupted: those corrupted before training, if any are.
        tokens: where trainings share the tokens of texts; None: each makes its own.
    """

    prepared: Path
    mined: Path
    corrupted: Path
    tokens: Path | None = None

    @classmethod
    def below(cls, folder: Path, *, tokens: bool = False) -> DataFolders:
        """Return those that have a folder to themselves."""
        return cls(folder / "prepared", folder / "mined", folder / "corrupted", folder / "tokens" if tokens else None)

    def prepare(
        self,
        settings: Settings,
        *,
        held_out: Callable[[Task], Iterable[str]] = held_out_texts,
        backbone: Backbone | StaticWords | None = None,
    ) -> None:
        """Make them: prepare, mine, corrupt.

        Args:
            settings: of the trainings.
            held_out: the texts of a task that no row may hold.
            backbone: that mines, already open; None: open it.
        """
        # here, since the driver of a sweep does without torch
        from cse.stages.corrupt import corrupt_stage
        from cse.stages.mine import mine_stage
        from cse.stages.prepare import prepare_stage

        report = self.prepared.with_name("prepare.json")
        prepare_stage(settings, prepared=self.prepared, metrics=report, progress=sys.stderr.isatty(), held_out=held_out)
        mine_stage(settings, prepared=self.prepared, mined=self.mined, backbone=backbone)
        corrupt_stage(settings, prepared=self.prepared, corrupted=self.corrupted)

    def steps(self, settings: Settings) -> int:
        """Return the updates of a whole training."""
        rows = self.mined if settings.mine.wanted else self.prepared
        return _steps(settings, rows / TRAIN_FILE, self.prepared)

    def evaluating(self, settings: Settings, times: int) -> Settings:
        """Return settings that evaluate so many times in a whole training."""
        return settings_with(settings, {"train.eval_every": max(math.ceil(self.steps(settings) / times), 1)})


def _steps(settings: Settings, file: Path, prepared: Path) -> int:
    train, more = settings.train, settings.data.more
    if not train.distinct_batches and not more:
        steps = math.ceil(len(open_rows(file)) / train.batch_size) * train.epochs
    else:
        files = ((file, 1.0), *((prepared / source_file(source.name), source.weight) for source in more))
        joined = train.mix == "rows" and bool(more)
        steps = mixed_steps(files, joined, train.distinct_batches, train.batch_size, train.epochs, train.seed)
    return min(steps, train.max_steps or steps)


@lru_cache(maxsize=64)
def mixed_steps(
    files: tuple[tuple[Path, float], ...], joined: bool, distinct: bool, batch_size: int, epochs: int, seed: int
) -> int:
    """Return the updates of a training whose batches depend on the rows.

    Args:
        files: rows and weight of each source.
        joined: whether the sources share batches.
        distinct: whether no batch holds a text twice.
        batch_size: rows per batch.
        epochs: passes over the rows.
        seed: of their order.
    """
    from cse.training.batches import Rows, row_keys
    from cse.training.mixture import Mixture

    sources = [(open_rows(file), weight) for file, weight in files]
    if joined:
        whole = join_rows([rows for rows, _ in sources])
        parts = tuple((len(rows), weight) for rows, weight in sources)
        tables = [Rows(len(whole), row_keys(whole) if distinct else None, parts=parts)]
    else:
        tables = [Rows(len(rows), row_keys(rows) if distinct else None, weight) for rows, weight in sources]
    return Mixture(tables, batch_size=batch_size, epochs=epochs, seed=seed).steps
