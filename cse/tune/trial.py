"""One trial of a sweep: the regular stage ``train`` in its own folder, reporting to Ray Tune.

A trial sees only training rows and dev pairs: the folder made by ``share_data`` contains no test sets.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from cse.bench.ledger import RUN, Ledger
from cse.bench.pacing import steps_of
from cse.bench.place import Place
from cse.bench.worker import Backbones
from cse.errors import CseError, is_full_disk
from cse.evaluation.dev_facts import SELECTION, dev_of, value_of
from cse.training.observers import Observer, StepRecord
from cse.tune.job import ATTEMPT, METRIC, WORST, Job, drawn_of, read_curve

LOSSES = 2  # unexplained worker losses before a trial fails
_backbones = Backbones()  # of a worker, which runs one trial after the other


@dataclass
class Reporter(Observer):
    """Reports every evaluation to Ray Tune except the last, which is reported once the checkpoint exists.

    Attributes:
        loss: loss of the last observed step.
    """

    report: Callable[[dict[str, Any]], None]
    steps: int = 1
    best: float = -math.inf
    loss: float = math.nan

    def start(self, done: int, steps: int) -> None:
        """Record the number of steps."""
        self.steps = steps

    def step(self, record: StepRecord) -> None:
        """Record the loss."""
        self.loss = record.terms["loss"]

    def evaluated(self, step: int, score: float, best: bool) -> None:
        """Report the best score so far; the evaluation at step 0 counts towards it but is not reported."""
        self.best = max(self.best, score)
        if 0 < step < self.steps:
            percent = math.ceil(100 * step / self.steps)
            self.report({METRIC: self.best, "percent": percent, "step": step, "loss": self.loss})


def run_trial(config: dict[str, Any], job: Job, report: Callable[[dict[str, Any]], None]) -> None:
    """Train one configuration and report its dev score; reuse the result if it was trained before.

    Args:
        report: function that takes metrics, like ``ray.tune.report``.

    A configuration that cannot be trained is reported with the worst possible score and its reason recorded; an error
    would kill the worker and lose its loaded backbone.

    Raises:
        OSError: no space left on the disk; no failure is recorded.
    """
    config = job.config_of(drawn_of(config))
    folder = job.folder_of(config)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(job.threads)
    with FileLock(folder / "lock"):  # a search may run the same configuration twice concurrently
        for percent, score in read_curve(folder, steps_of(job.settings_of(config), job.data)):
            if percent < 100:  # from an earlier attempt; the scheduler needs these scores too
                report({METRIC: score, "percent": percent})
        record = Ledger(folder).run(
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


def _train(config: dict[str, Any], job: Job, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    settings, folder = job.settings_of(config), job.folder_of(config)
    with _attempt(folder):
        metrics = Place(folder).train(
            settings,
            job.data,
            scratch=folder / "scratch",
            backbone=_backbones.of(settings),
            watch=lambda training: [Reporter(report)],
        )
    facts = {
        "step": metrics["steps"],
        "steps": steps_of(settings, job.data),
        "best_step": metrics.get("best_step", metrics["steps"]),
    }
    score = dev_of(metrics, SELECTION) or dev_of(metrics)  # the same kind of score as during training
    return {METRIC: value_of(score), "facts": facts, "values": job.changes_of(config, settings)}


@contextmanager
def _attempt(folder: Path) -> Iterator[None]:
    """Keep a file while a worker runs the trial; files left behind count lost workers."""
    lost = sum(1 for _ in folder.glob(f"{ATTEMPT}*"))
    if lost >= LOSSES:
        raise CseError(f"its worker died {lost} times, killed externally or by its own error")
    note = folder / f"{ATTEMPT}{lost + 1}"
    note.touch()
    try:
        yield
    finally:  # runs if Ray Tune stops the trial, but not if the worker dies
        note.unlink(missing_ok=True)
