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
from cse.settings import Settings
from cse.settings.spaces import settings_with
from cse.training.memory import is_out_of_memory
from cse.training.observers import Observer, StepRecord
from cse.tune.job import ATTEMPT, METRIC, WORST, Job, read_curve
from cse.tune.memory import GROWN, free_memory, kept_to_share

LOSSES = 2  # unexplained worker losses before a trial fails
LEAST_SENTENCES = 8  # minimum in memory at once; a trial that does not fit then fails
_backbones = Backbones()  # of a worker, which runs one trial after the other


@dataclass
class Reporter(Observer):
    """Reports every evaluation to Ray Tune except the last, which is reported once the checkpoint exists.

    Attributes:
        report: function that takes the metrics.
        facts: constant metrics.
        steps: steps in the whole training.
        best: best dev score so far.
        loss: loss of the last observed step.
    """

    report: Callable[[dict[str, Any]], None]
    facts: dict[str, Any]
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
            self.report({METRIC: self.best, "percent": percent, "step": step, "loss": self.loss, **self.facts})


def run_trial(config: dict[str, Any], job: Job, report: Callable[[dict[str, Any]], None]) -> None:
    """Train one configuration and report its dev score; reuse the result if it was trained before.

    Args:
        config: values by dotted key.
        job: the sweep.
        report: function that takes metrics, like ``ray.tune.report``.

    A configuration that cannot be trained is reported with the worst possible score and its reason recorded; an error
    would kill the worker and lose its loaded backbone.

    Raises:
        OSError: no space left on the disk; no failure is recorded.
    """
    config = job.config_of(config)
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
    """Train, halving the sentences in memory each time memory runs out (gradients stay the same)."""
    settings, folder = job.settings_of(config), job.folder_of(config)
    with _attempt(folder) as attempt:
        if (folder / GROWN).is_file():  # an earlier attempt exceeded its share of memory
            settings = _with_half(settings, int((folder / GROWN).read_text(encoding="utf-8")))
        while True:
            reporter = Reporter(report, {"mini_batch_size": settings.train.mini_batch_size or 0})
            try:
                with kept_to_share(folder / GROWN, job.at_once, _at_once(settings), attempt):
                    metrics = Place(folder).train(
                        settings,
                        job.data,
                        scratch=folder / "scratch",
                        backbone=_backbones.of(settings),
                        watch=lambda training: [reporter],  # noqa: B023 - called in this turn
                    )
                break
            except (RuntimeError, MemoryError, CseError) as error:
                if not is_out_of_memory(error):
                    raise
                settings = _with_half(settings, _at_once(settings))
            free_memory()
    facts = {
        "step": metrics["steps"],
        "steps": steps_of(settings, job.data),
        "best_step": metrics.get("best_step", metrics["steps"]),
        **reporter.facts,
    }
    score = dev_of(metrics, SELECTION) or dev_of(metrics)  # the same kind of score as during training
    return {METRIC: value_of(score), "facts": facts, "values": job.changes_of(config, settings)}


@contextmanager
def _attempt(folder: Path) -> Iterator[Path]:
    """Yield a file that marks a worker as running the trial; files left behind count lost workers.

    Raises:
        CseError: ``LOSSES`` workers were lost.
    """
    lost = sum(1 for _ in folder.glob(f"{ATTEMPT}*"))
    if lost >= LOSSES:
        raise CseError(f"its worker died {lost} times, killed externally or by its own error")
    note = folder / f"{ATTEMPT}{lost + 1}"
    note.touch()
    try:
        yield note
    finally:  # runs if Ray Tune stops the trial, but not if the worker dies
        note.unlink(missing_ok=True)


def _at_once(settings: Settings) -> int:
    """Return the maximum number of sentences in memory at once."""
    return settings.train.mini_batch_size or 3 * settings.train.batch_size


def _with_half(settings: Settings, now: int) -> Settings:
    """Return settings that hold half as many sentences in memory at once.

    Args:
        settings: settings of the trial.
        now: number of sentences that did not fit.

    Raises:
        CseError: the number is already at its minimum.
    """
    if now // 2 < LEAST_SENTENCES:
        raise CseError(f"out of memory, even with {now} sentences at once (train.mini_batch_size)")
    return settings_with(settings, {"train.mini_batch_size": now // 2})
