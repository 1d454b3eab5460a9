"""What the driver and the trials of a sweep share; does not import torch, so that the driver starts fast."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.bench.data import DataFolders, link_files, link_rows
from cse.bench.ledger import RUN, Ledger, RunRecord
from cse.bench.pacing import evaluating
from cse.data.store import TRAIN_FILE, PreparedData
from cse.data.tasks.store import open_dev
from cse.evaluation.dev_facts import read_dev_curve
from cse.files import fingerprint
from cse.settings import Settings
from cse.settings.load import flatten, settings_with
from cse.training import MINING_FILE
from cse.tune.spaces import SEED

METRIC = "dev_spearman"  # what Ray Tune calls the metric that ranks trials, whatever the dev task's measure
WORST = -100.0  # score of settings that cannot be trained
ATTEMPT = "attempt-"  # prefix of the files that count a trial's workers
SETTING = "setting"  # beside the values of a trial on a list: what it is called


def drawn_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what Ray Tune drew for a trial: of a list an entry, else a value for each key."""
    entry: Mapping[str, Any] = config.get("run", config)
    return entry


@dataclass(frozen=True)
class Job:
    """A sweep as its trials see it.

    Attributes:
        settings: base settings that each trial modifies.
        corrupted: folder of rows corrupted before training, absolute.
        threads: threads per trial.
        evaluations: evenly spaced evaluations per trial; None: every ``train.eval_every`` steps.
        ranges: keys searched over a range; their values are rounded to three digits.
    """

    settings: Settings
    folder: Path
    corrupted: Path
    threads: int
    evaluations: int | None
    ranges: tuple[str, ...] = ()

    @property
    def data(self) -> DataFolders:
        """Training rows and dev pairs, without any test set."""
        shared = self.folder / "data"
        return DataFolders(shared, shared / "mined", self.corrupted, self.folder / "tokens")

    def config_of(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's configuration: plain Python values, floats of ranges rounded, no seed but another one."""
        own = {SETTING: drawn.get(SETTING), SEED: self.settings.train.seed}
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in drawn.items()}
        return {
            key: float(f"{value:.3g}") if key in self.ranges and isinstance(value, float) else value
            for key, value in plain.items()
            if key not in own or value != own[key]
        }

    def settings_of(self, config: Mapping[str, Any]) -> Settings:
        """Return the settings of a trial."""
        settings = settings_with(self.settings, {"train.workers": 1, **config})
        return settings if self.evaluations is None else evaluating(settings, self.data, self.evaluations)

    def changes_of(self, config: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        """Return the keys of a trial that differ from the base settings: its own values and those derived from them."""
        before, after = (flatten(each.model_dump(mode="json")) for each in (self.settings, settings))
        return {key: value for key, value in after.items() if key in config or before[key] != value}

    def folder_of(self, config: Mapping[str, Any]) -> Path:
        """Return the folder of a configuration; equal values share a folder."""
        return self.folder / "trials" / fingerprint(config)[:12]

    def record_of(self, config: Mapping[str, Any]) -> RunRecord | None:
        """Return the record of a configuration, None if its training has not ended."""
        return Ledger(self.folder_of(config)).read(RUN)


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


def share_data(prepared: Path, shared: DataFolders, mined: Path | None = None) -> None:
    """Hard-link the training rows of prepared data for the trials, beside its dev task: no test set.

    Args:
        prepared: folder of the rows and of all that is measured.
        mined: folder of the mined triplets; None: none were.
    """
    shutil.rmtree(shared.prepared, ignore_errors=True)
    shared.prepared.mkdir(parents=True)
    link_rows(prepared, shared.prepared, open_dev(PreparedData(prepared)))
    if mined is not None:
        shared.mined.mkdir()
        link_files(mined, shared.mined, (TRAIN_FILE, MINING_FILE))
