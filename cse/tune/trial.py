"""A trial of a sweep: the regular stage ``train`` in its own folder, which reports to Ray Tune.

A trial sees training rows and dev pairs alone: the folder made by ``share_data`` holds no test set.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from cse.data.store import PreparedData
from cse.data.tasks.store import open_dev
from cse.errors import is_full_disk
from cse.evaluation.dev_facts import SELECTION, dev_of, value_of
from cse.files import fingerprint
from cse.ledger import RUN, Ledger, RunRecord
from cse.settings import Settings
from cse.settings.load import flatten, settings_with
from cse.stages.place import Place, link_rows, spacing, steps_of
from cse.training.observers import Observer, StepRecord
from cse.tune.outcome import TrialRecord
from cse.tune.spaces import SEED, named

METRIC = "dev_spearman"  # what Ray Tune calls the metric that ranks trials, whatever the dev task's measure
WORST = -100.0  # score of settings that cannot be trained
EVALUATIONS = 4  # of a trial that Optuna draws, evenly spaced; those that fall behind stop there
LISTED, SETTING = "run", "setting"  # in what Ray Tune draws: an entry of a list of trials; in it, what it is called
Report = Callable[[dict[str, Any]], object]  # such as ``ray.tune.report``


@dataclass(frozen=True)
class Job:
    """A sweep as its trials see it.

    Attributes:
        evaluations: evenly spaced evaluations per trial; None: every ``train.eval_every`` steps.
        ranges: keys searched over a range; their values are rounded to three digits.
    """

    settings: Settings
    folder: Path
    evaluations: int | None
    ranges: tuple[str, ...] = ()

    @property
    def threads(self) -> int:
        """CPU cores of a trial."""
        return self.settings.tune.cpus_per_trial

    @property
    def data(self) -> Path:
        """Folder of training rows and dev pairs, without any test set."""
        return self.folder / "data"

    def config_of(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's configuration: plain Python values, floats of ranges rounded, no seed but another one."""
        config = {}
        for key, value in drawn.get(LISTED, drawn).items():
            plain = value.item() if hasattr(value, "item") else value
            if key in self.ranges and isinstance(plain, float):
                plain = float(f"{plain:.3g}")
            if key != SETTING and (key, plain) != (SEED, self.settings.train.seed):
                config[key] = plain
        return config

    def wanted(self, number: int, drawn: Mapping[str, Any]) -> TrialRecord:
        """Return the record of a trial before it ends."""
        config = self.config_of(drawn)
        name = drawn.get(LISTED, drawn).get(SETTING) or named(config)
        seed, folder = config.get(SEED, self.settings.train.seed), str(self.folder_of(config))
        return TrialRecord(number=number, name=name, seed=seed, config=config, values=config, folder=folder)

    def settings_of(self, config: Mapping[str, Any]) -> tuple[Settings, int]:
        """Return the settings of a trial, and the updates of its training."""
        settings = settings_with(self.settings, {"train.workers": 1, **config})
        steps = steps_of(settings, self.data)
        if self.evaluations is not None:
            settings = settings_with(settings, {"train.eval_every": spacing(steps, self.evaluations)})
        return settings, steps

    def folder_of(self, config: Mapping[str, Any]) -> Path:
        """Return the folder of a configuration; equal values share a folder."""
        return self.folder / "trials" / fingerprint(config)[:12]

    def record_of(self, config: Mapping[str, Any]) -> RunRecord | None:
        """Return the record of a configuration, None if its training has not ended."""
        return Ledger(self.folder_of(config)).read(RUN)


def share_data(prepared: Path, shared: Path) -> None:
    """Hard-link training rows for the trials beside the dev task: no test set."""
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir(parents=True)
    link_rows(prepared, shared, open_dev(PreparedData(prepared)))


@dataclass
class _Reporter(Observer):
    """Reports every evaluation to Ray Tune except the last, which is reported once the checkpoint exists."""

    report: Report
    steps: int = 1
    best: float = -math.inf
    loss: float = math.nan

    def start(self, done: int, steps: int) -> None:
        self.steps = steps

    def step(self, record: StepRecord) -> None:
        self.loss = record.terms["loss"]

    def evaluated(self, step: int, score: float, best: bool) -> None:
        self.best = max(self.best, score)
        if 0 < step < self.steps:  # the first one counts towards the best alone
            percent = math.ceil(100 * step / self.steps)
            self.report({METRIC: self.best, "percent": percent, "step": step, "loss": self.loss})


def run_on_ray(config: dict[str, Any], job: Job) -> None:
    """Run a trial in a worker of Ray Tune."""
    from ray import tune

    run_trial(config, job, tune.report)


def run_trial(config: dict[str, Any], job: Job, report: Report) -> None:
    """Train one configuration and report its dev score; reuse the result if it was trained before.

    A configuration that cannot be trained is reported with the worst possible score and its reason recorded; an error
    would kill the worker and lose its loaded backbone.

    Raises:
        OSError: no space left on the disk; no failure is recorded.
    """
    config = job.config_of(config)
    folder, ledger = job.folder_of(config), Ledger(job.folder_of(config))
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(job.threads)
    with FileLock(folder / "lock"):  # a search may run the same configuration twice concurrently
        record = ledger.run(
            RUN,
            partial(_train, config, job, report),
            of=config,
            fails=lambda error: not is_full_disk(error),  # no fault of this configuration: a resumed sweep retries it
        )
        shutil.rmtree(folder / "scratch", ignore_errors=True)
    if record.reason:
        report({METRIC: WORST, "percent": 100})
    else:
        facts = record.result["facts"] | {"seconds_of_training": record.seconds}
        report({METRIC: record.result[METRIC], "percent": 100, **facts})


def _train(config: dict[str, Any], job: Job, report: Report) -> dict[str, Any]:
    folder, (settings, steps) = job.folder_of(config), job.settings_of(config)
    metrics = Place(folder).train(
        settings,
        job.data,
        scratch=folder / "scratch",
        watch=lambda training: [_Reporter(report)],
    )
    done, before, after = (
        metrics["steps"],
        *(flatten(each.model_dump(mode="json")) for each in (job.settings, settings)),
    )
    return {
        METRIC: value_of(dev_of(metrics, SELECTION) or dev_of(metrics)),  # the same kind of score as during training
        "facts": {"step": done, "steps": steps, "best_step": metrics.get("best_step", done)},
        "values": {key: value for key, value in after.items() if key in config or before[key] != value},
    }
