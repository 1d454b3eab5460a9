"""What driver and trials of a sweep agree on; without torch, so that the driver starts fast."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.data.store import DEV_FILE, REPORT_FILE, TRAIN_FILE
from cse.files import fingerprint, read_csv
from cse.settings import Settings
from cse.settings.load import flatten
from cse.settings.spaces import settings_with

METRIC = "dev_spearman"  # the one thing that trials are compared by: Spearman * 100 on the dev pairs
WORST = -100.0  # what a setting counts for that cannot be trained
ATTEMPT = "attempt-"  # start of the names of files that count a trial's workers
RESULT, FAILED = "result.json", "failed.txt"  # in a trial's folder


@dataclass(frozen=True)
class Job:
    """A sweep, as its trials see it.

    Attributes:
        settings: around what is searched.
        folder: of the sweep, absolute.
        corrupted: folder of a corruption made beforehand, absolute.
        threads: of a trial.
        evaluations: of a trial, evenly spaced; None: as ``train.eval_every`` says.
        rows: training rows.
        at_once: trials that run on a machine at the same time; they share its memory.
        ranges: keys that are searched in a range; their values are rounded to three digits.
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

    def config_of(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a trial tries, of what the search has drawn: plain values, floats of ranges rounded."""
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
        every = math.ceil(steps_of(settings, self.rows) / self.evaluations)
        return settings_with(settings, {"train.eval_every": every})

    def changes_of(self, config: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        """Return what makes these settings of a trial of the settings around: its values and what follows from them."""
        before, after = (flatten(each.model_dump(mode="json")) for each in (self.settings, settings))
        return {key: value for key, value in after.items() if key in config or before[key] != value}

    def folder_of(self, config: Mapping[str, Any]) -> Path:
        """Return the folder of a setting: the same for the same values."""
        return self.folder / "trials" / fingerprint(config)[:12]


def steps_of(settings: Settings, rows: int) -> int:
    """Return the optimiser updates of a whole training."""
    return math.ceil(rows / settings.train.batch_size) * settings.train.epochs


def read_curve(folder: Path, steps: int) -> list[tuple[int, float]]:
    """Return per cent done and best dev score at each evaluation of a trial; the start counts for the best score alone.

    The log of a training that did not end lies with its saved state.
    """
    logs = [folder / "plots" / "dev.csv", *folder.glob("scratch/resume/*/plots/dev.csv")]
    curve: list[tuple[int, float]] = []
    best = -math.inf
    for row in read_csv(next((path for path in logs if path.is_file()), logs[0])):
        best = max(best, float(row["spearman"]))
        if int(row["step"]) > 0:
            curve.append((math.ceil(100 * int(row["step"]) / steps), best))
    return curve


def share_data(prepared: Path, folder: Path) -> None:
    """Give trials the training rows and the dev pairs of prepared data, and no test set, without copying them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in (TRAIN_FILE, DEV_FILE, REPORT_FILE):
        try:
            os.link((prepared / name).resolve(), folder / name)
        except OSError:  # another disk
            shutil.copyfile(prepared / name, folder / name)
