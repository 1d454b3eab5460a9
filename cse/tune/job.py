"""What the driver and the trials of a sweep share; does not import torch, so that the driver starts fast."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cse.data.store import REPORT_FILE, TRAIN_FILE, PreparedData, join_rows, open_rows, source_file
from cse.data.tasks.store import open_dev, write_tasks
from cse.evaluation.dev_facts import read_dev_curve
from cse.files import fingerprint
from cse.settings import Settings
from cse.settings.load import flatten
from cse.settings.spaces import settings_with
from cse.stages.common import MINING_FILE

METRIC = "dev_spearman"  # what Ray Tune calls the metric that ranks trials, whatever the dev task's measure
WORST = -100.0  # score of settings that cannot be trained
ATTEMPT = "attempt-"  # prefix of the files that count a trial's workers
RESULT, FAILED = "result.json", "failed.txt"  # in a trial folder


@dataclass(frozen=True)
class Job:
    """A sweep as its trials see it.

    Attributes:
        settings: base settings that each trial modifies.
        folder: the sweep folder, absolute.
        corrupted: folder of rows corrupted before training, absolute.
        threads: threads per trial.
        evaluations: evenly spaced evaluations per trial; None: every ``train.eval_every`` steps.
        rows: number of training rows.
        at_once: concurrent trials per machine, which share its memory.
        ranges: keys searched over a range; their values are rounded to three digits.
    """

    settings: Settings
    folder: Path
    corrupted: Path
    threads: int
    evaluations: int | None
    rows: int
    at_once: int = 1
    ranges: tuple[str, ...] = ()

    @property
    def data(self) -> Path:
        """Training rows and dev pairs."""
        return self.folder / "data"

    @property
    def mined(self) -> Path:
        """Mined triplets; no such folder if none are mined."""
        return self.data / "mined"

    @property
    def rows_file(self) -> Path:
        """The training rows."""
        return (self.mined if self.settings.mine.wanted else self.data) / TRAIN_FILE

    def config_of(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's configuration from the sampled values: plain Python values, floats of ranges rounded."""
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in drawn.items()}
        return {
            key: float(f"{value:.3g}") if key in self.ranges and isinstance(value, float) else value
            for key, value in plain.items()
        }

    def settings_of(self, config: Mapping[str, Any]) -> Settings:
        """Return the settings of a trial."""
        settings = settings_with(self.settings, {"train.workers": 1, **config})
        if self.evaluations is None:
            return settings
        every = math.ceil(self.steps_of(settings) / self.evaluations)
        return settings_with(settings, {"train.eval_every": every})

    def steps_of(self, settings: Settings) -> int:
        """Return the number of optimiser updates in a full training."""
        return steps_of(settings, self.rows, self.rows_file, self.data)

    def changes_of(self, config: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        """Return the keys of a trial that differ from the base settings: its own values and those derived from them."""
        before, after = (flatten(each.model_dump(mode="json")) for each in (self.settings, settings))
        return {key: value for key, value in after.items() if key in config or before[key] != value}

    def folder_of(self, config: Mapping[str, Any]) -> Path:
        """Return the folder of a configuration; equal values share a folder."""
        return self.folder / "trials" / fingerprint(config)[:12]


def steps_of(settings: Settings, rows: int, file: Path, folder: Path) -> int:
    """Return the number of optimiser updates in a full training.

    Args:
        settings: of the training.
        rows: number of rows of the main source.
        file: those rows.
        folder: prepared data, with the rows of further sources.
    """
    train, more = settings.train, settings.data.more
    if not train.distinct_batches and not more:
        steps = math.ceil(rows / train.batch_size) * train.epochs
    else:
        files = ((file, 1.0), *((folder / source_file(source.name), source.weight) for source in more))
        joined = train.mix == "rows" and bool(more)
        steps = _mixed_steps(files, joined, train.distinct_batches, train.batch_size, train.epochs, train.seed)
    return min(steps, train.max_steps or steps)


@lru_cache(maxsize=64)
def _mixed_steps(
    files: tuple[tuple[Path, float], ...], joined: bool, distinct: bool, batch_size: int, epochs: int, seed: int
) -> int:
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


def read_curve(folder: Path, steps: int) -> list[tuple[int, float]]:
    """Return percentage done and best dev score so far at each evaluation after the start of a trial.

    The best score includes the start. The log of an unfinished training is in the folder of its saved state.
    """
    logs = [folder / "plots" / "dev.csv", *folder.glob("scratch/resume/*/plots/dev.csv")]
    curve: list[tuple[int, float]] = []
    best = -math.inf
    for step, score in read_dev_curve(next((path for path in logs if path.is_file()), logs[0])):
        best = max(best, score)
        if step > 0:
            curve.append((math.ceil(100 * step / steps), best))
    return curve


def share_data(prepared: Path, folder: Path, mined: Path | None = None) -> None:
    """Hard-link the training rows of prepared data into a folder for the trials, beside its dev task: no test set.

    Mined triplets follow in a folder below it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    data = PreparedData(prepared)
    _link(prepared, folder, (TRAIN_FILE, *map(source_file, data.sources), REPORT_FILE))
    write_tasks(folder, dev=open_dev(data))
    if mined is not None:
        (folder / "mined").mkdir()
        _link(mined, folder / "mined", (TRAIN_FILE, MINING_FILE))


def _link(source: Path, folder: Path, names: Iterable[str]) -> None:
    for name in names:
        try:
            os.link((source / name).resolve(), folder / name)
        except OSError:  # on another disk
            shutil.copyfile(source / name, folder / name)
