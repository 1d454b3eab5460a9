"""How fast a training runs on this machine, from its first steps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from cse.adapt.plan import Pace
from cse.settings import Settings
from cse.settings.load import settings_with
from cse.training import Folders
from cse.training.observers import Observer, StepRecord
from cse.training.ready import open_training

_STEPS = 15  # at most; a record comes every five, and those up to the first warm up


@dataclass
class _Stopwatch(Observer):
    """An observer that notes when what happened."""

    started: float = 0.0
    since: float = 0.0  # when the last step or evaluation ended
    evaluation: float = 0.0
    steps: list[tuple[int, float]] = field(default_factory=list)

    def start(self, done: int, steps: int) -> None:
        """Note the time before the first evaluation."""
        self.started = self.since = time.monotonic()
        self.steps = [(0, self.since)]

    def step(self, record: StepRecord) -> None:
        """Note when a step ended."""
        self.since = time.monotonic()
        self.steps.append((record.step, self.since))

    def evaluated(self, step: int, score: float, best: bool) -> None:
        """Note the time of an evaluation; the first one warms up."""
        self.evaluation = time.monotonic() - self.since
        if step == 0:
            self.since = time.monotonic()
            self.steps = [(0, self.since)]


def time_training(settings: Settings, data: Folders) -> Pace:
    """Train a few steps that nobody keeps."""
    few = min(_STEPS, settings.train.max_steps or _STEPS)
    watch = _Stopwatch()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        short = settings_with(settings, {"train.max_steps": few, "train.eval_every": _STEPS})
        training = open_training(short, replace(data, tokens=None), scratch=Path(scratch))
        training.run(watch)
    (first, since), (last, until) = (watch.steps[1] if len(watch.steps) > 2 else watch.steps[0]), watch.steps[-1]
    return Pace(watch.started - begun, (until - since) / (last - first), watch.evaluation)
