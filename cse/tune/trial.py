"""One trial of a sweep: the same stage ``train`` as everywhere, in a folder of its own, watched by Ray Tune.

A trial sees training rows and dev pairs and nothing else: the folder that ``share_data`` makes holds no test sets.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from cse.data.store import PreparedData
from cse.errors import CseError, is_full_disk
from cse.files import fingerprint
from cse.model.backbone import Backbone
from cse.outputs import publish_file
from cse.settings import Settings
from cse.settings.spaces import settings_with
from cse.stages.fitting import open_backbone
from cse.stages.train import train_stage
from cse.stages.training import Training
from cse.training.memory import is_out_of_memory
from cse.training.observers import CsvLog, Observers, StepRecord
from cse.training.state import RunState
from cse.tune.job import ATTEMPT, FAILED, METRIC, RESULT, WORST, Job, read_curve, steps_of
from cse.tune.memory import GROWN, free_memory, kept_to_share

LOSSES = 2  # of a trial's worker, that nothing explains
LEAST_SENTENCES = 8  # in memory at once; a trial that does not fit then has failed
_backbones: dict[str, Backbone] = {}  # of this worker; Ray Tune gives it one trial after the other


@dataclass
class Reporter:
    """Tells Ray Tune of every evaluation but the last, which is told when the checkpoint is there.

    Attributes:
        report: takes the metrics.
        facts: metrics that stay the same.
        steps: of the whole training.
        best: dev score so far.
        loss: of the last step that was seen.
    """

    report: Callable[[dict[str, Any]], None]
    facts: dict[str, Any]
    steps: int = 1
    best: float = -math.inf
    loss: float = math.nan

    def start(self, done: int, steps: int) -> None:
        """Note how long the run is."""
        self.steps = steps

    def step(self, record: StepRecord) -> None:
        """Note the loss."""
        self.loss = record.terms["loss"]

    def evaluated(self, step: int, score: float, best: bool) -> None:
        """Report the best score so far; the start counts for it, but is no progress."""
        self.best = max(self.best, score)
        if 0 < step < self.steps:
            percent = math.ceil(100 * step / self.steps)
            self.report({METRIC: self.best, "percent": percent, "step": step, "loss": self.loss, **self.facts})

    def close(self) -> None:
        """Nothing is open."""


def run_trial(config: dict[str, Any], job: Job, report: Callable[[dict[str, Any]], None]) -> None:
    """Train one setting and report its dev score; a setting that was trained before is not trained again.

    Args:
        config: values by dotted key.
        job: the sweep.
        report: takes metrics, as ``ray.tune.report`` does.

    A setting that cannot be trained is reported with the worst score there is, and its reason written down: an error
    would cost the worker, with the backbone in it.

    Raises:
        OSError: no space left on the disk; nothing is written down.
    """
    config = job.config_of(config)
    folder = job.folder_of(config)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(job.threads)
    with FileLock(folder / "lock"):  # a search may ask for one setting twice at the same time
        for percent, score in read_curve(folder, steps_of(job.settings_of(config), job.rows)):
            if percent < 100:  # of an earlier attempt: the other trials are compared with these too
                report({METRIC: score, "percent": percent})
        if not (folder / RESULT).is_file() and not (folder / FAILED).is_file():
            attempt = None
            try:
                attempt = _count_attempt(folder)
                result = _train(config, job, folder, report)
            except CseError as error:
                (folder / FAILED).write_text(str(error), encoding="utf-8")
            except Exception as error:  # whatever it is, the other trials go on
                if is_full_disk(error):
                    raise  # not of this setting's making: it is trained when the sweep goes on
                reason = " ".join(str(error).split())[:300]
                (folder / FAILED).write_text(f"{type(error).__name__}: {reason}", encoding="utf-8")
            else:
                with publish_file(folder / RESULT) as target:
                    target.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
            finally:  # also where Ray Tune stops the trial; not where the worker dies
                if attempt is not None:
                    attempt.unlink(missing_ok=True)
            shutil.rmtree(folder / "scratch", ignore_errors=True)
    if (folder / FAILED).is_file():
        report({METRIC: WORST, "percent": 100})
        return
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    report({METRIC: result[METRIC], "percent": 100, **result["facts"]})


def _train(config: dict[str, Any], job: Job, folder: Path, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Train, with half as many sentences in memory each time it does not hold them (the gradient stays the same)."""
    started = time.monotonic()
    settings = job.settings_of(config)
    rows = len(PreparedData(job.data).train)
    if (folder / GROWN).is_file():  # an earlier attempt took more than its share of the machine's memory
        settings = _with_half(settings, int((folder / GROWN).read_text(encoding="utf-8")))
    while True:
        try:
            with kept_to_share(folder / GROWN, job.at_once, _at_once(settings)):
                metrics = _train_once(settings, job, folder, report)
            break
        except (RuntimeError, MemoryError, CseError) as error:
            if not is_out_of_memory(error):
                raise
            settings = _with_half(settings, _at_once(settings))
        free_memory()
    facts = {
        "step": metrics["steps"],
        "steps": steps_of(settings, rows),
        "best_step": metrics.get("best_step", metrics["steps"]),
        "seconds_of_training": round(time.monotonic() - started, 2),
        "mini_batch_size": settings.train.mini_batch_size or 0,
    }
    score = metrics.get("selection_spearman", metrics["dev_spearman"])  # as the scores on the way
    return {METRIC: score, "facts": facts, "values": job.changes_of(config, settings)}


def _train_once(settings: Settings, job: Job, folder: Path, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    def launch(training: Training) -> RunState:
        facts = {"mini_batch_size": settings.train.mini_batch_size or 0}
        return training.run(Observers([CsvLog(training.folder.path / "plots"), Reporter(report, facts)]))

    return train_stage(
        settings,
        prepared=job.data,
        corrupted=job.corrupted,
        checkpoint=folder / "checkpoint",
        metrics=folder / "train.json",
        plots=folder / "plots",
        scratch=folder / "scratch",
        launch=launch,
        backbone=_backbone(settings, job.data),
        tokens=job.folder / "tokens",
    )


def _backbone(settings: Settings, data: Path) -> Backbone | None:
    """Return the frozen backbone as it was loaded, for one attempt; one that is trained is loaded by the training.

    The worker keeps the weights from trial to trial. An attempt that is stopped, or out of memory, leaves its backbone
    as it was then, on a GPU perhaps; so each has its own.
    """
    if settings.train.parameters != "prompts":
        return None
    key = fingerprint({"backbone": settings.backbone.model_dump(), "pooler": settings.pooler.kind})
    if key not in _backbones:
        _backbones.clear()
        opened = open_backbone(settings.backbone, settings.pooler, PreparedData(data))
        if not isinstance(opened, Backbone):
            return None
        _backbones[key] = opened
    return _backbones[key].sibling()


def _count_attempt(folder: Path) -> Path:
    """Note that a worker starts on a trial, and return the note; what is left of them are workers that were lost.

    Those that outgrew their memory do not count.

    Raises:
        CseError: ``LOSSES`` workers were lost.
    """
    grown = (folder / GROWN).is_file() and (folder / GROWN).stat().st_mtime > _last_attempt(folder)
    lost = 0 if grown else sum(1 for _ in folder.glob(f"{ATTEMPT}*"))
    if grown:
        for path in folder.glob(f"{ATTEMPT}*"):
            path.unlink()
    if lost >= LOSSES:
        raise CseError(f"its worker died {lost} times, killed from outside or by an error of its own")
    note = folder / f"{ATTEMPT}{lost + 1}"
    note.touch()
    return note


def _last_attempt(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.glob(f"{ATTEMPT}*")), default=0.0)


def _at_once(settings: Settings) -> int:
    """Return the most sentences in memory at once."""
    return settings.train.mini_batch_size or 3 * settings.train.batch_size


def _with_half(settings: Settings, now: int) -> Settings:
    """Return settings that hold half as many sentences in memory at once.

    Args:
        settings: of the trial.
        now: how many did not fit.

    Raises:
        CseError: there were too few already.
    """
    if now // 2 < LEAST_SENTENCES:
        raise CseError(f"out of memory, even with {now} sentences at once (train.mini_batch_size)")
    return settings_with(settings, {"train.mini_batch_size": now // 2})
