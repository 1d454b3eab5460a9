"""The clock of an adaptation: how fast this machine trains, and what it will train in the time that is given.

The plan is made once and before anything is trained. It is written down, and what is done later follows it alone: no
clock decides anything any more, so a killed adaptation ends in the same model.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from cse.adapt.ladder import DOCUMENTS, FEW_ROWS, LABELS, TEXT
from cse.errors import CseError, counted
from cse.runtime.kept_vectors import KeptVectors
from cse.settings import Settings
from cse.settings.load import settings_with
from cse.stages.place import spacing
from cse.training.observers import Observer, StepRecord
from cse.training.ready import open_training

SEEDS, EPOCHS = 3, 10  # at most
EVALUATIONS = 8  # on the dev task, in a training; one more before it
_STEPS = 15  # that are timed, at most; a record comes every five, and those up to the first warm up


@dataclass(frozen=True)
class Spending:
    """How the time is spent on one kind of text.

    Attributes:
        first: epochs and steps of a training, whichever is more, before a second seed.
        most: steps of a training, if ``EPOCHS`` are fewer.
        again: whether what was chosen is trained again, on the rows that chose.
    """

    first: tuple[int, int] = (0, 0)
    most: int = 0
    seeds: int = SEEDS
    again: bool = False
    evaluations: int = EVALUATIONS


SPENDING = {
    TEXT: Spending(),
    # the held-out score rises steeply with the first steps
    LABELS: Spending(first=(4, 120), most=600),
    # more steps cost accuracy; trained again on every row, nothing chooses among weights
    FEW_ROWS: Spending(first=(4, 60), most=60, again=True, evaluations=1),
    # two epochs are known to do
    DOCUMENTS: Spending(seeds=1, again=True),
}


class TooShortError(CseError):
    """A budget for less than one training."""


@dataclass(frozen=True)
class Pace:
    """How fast a system trains here, in seconds.

    Attributes:
        start: until the first step.
        evaluation: on the dev task; 0 without one.
    """

    start: float
    step: float
    evaluation: float

    def training(self, steps: float) -> float:
        """Return the seconds of a training."""
        return self.start + steps * self.step + (EVALUATIONS + 1) * self.evaluation


@dataclass(frozen=True)
class Workload:
    """What there is to do, whatever the time allows.

    Attributes:
        paces: by system, the cheap one first.
        measuring: seconds that measuring one model takes.
        epochs: of a training, at least.
        steps: returns the steps of a training of so many epochs.
        max_steps: of any training; None: as many as its epochs have.
        selects: whether something keeps the best of more epochs.
    """

    kind: str
    paces: Mapping[str, Pace]
    measuring: float
    epochs: int
    steps: Callable[[int], int]
    max_steps: int | None
    selects: bool

    @cached_property
    def _least(self) -> int:
        return self.steps(self.epochs)

    def nearly(self, epochs: int) -> float:
        """Return about the steps of a training of so many epochs, without going through the rows of each."""
        return min(self._least * epochs / self.epochs, self.max_steps or math.inf)

    def once(self, epochs: int) -> float:
        """Return the seconds of one training of each system."""
        return max(sum(pace.training(self.nearly(epochs)) for pace in self.paces.values()), 1e-3)


@dataclass(frozen=True)
class TrainingPlan:
    """What is trained.

    Attributes:
        seeds: to train each system with, 1 to ``SEEDS``.
        epochs: of each training; it has so many ``steps``.
        notes: what the user should know of what the budget did not allow.
    """

    systems: Sequence[str]
    seeds: int
    epochs: int
    steps: int
    eval_every: int
    notes: Sequence[str] = ()

    @property
    def settings(self) -> dict[str, int]:
        """The settings of a training by dotted key."""
        return {"train.epochs": self.epochs, "train.eval_every": self.eval_every}

    def __str__(self) -> str:
        length = f"{counted(self.epochs, 'epoch')} ({self.steps:,} steps)"
        return f"{', '.join(self.systems)}; {counted(self.seeds, 'seed')} of {length}"


def make_plan(work: Workload, *, budget: float, spent: float) -> TrainingPlan:
    """Plan for a budget: more seeds, then more epochs.

    The last system is left out if the budget allows no training of each.

    Args:
        budget: seconds in all.
        spent: seconds so far.
    """
    how, left, once = SPENDING[work.kind], budget - spent, work.once(work.epochs)
    times, measures = 2 if how.again else 1, work.measuring * len(work.paces)
    if times * once + measures > left and len(work.paces) > 1:
        return make_plan(replace(work, paces=dict([*work.paces.items()][:-1])), budget=budget, spent=spent)
    if times * once + measures > left:
        needed = duration(spent + times * once + measures)
        raise TooShortError(
            f"--budget: one training and its measures need {needed} here, the budget is {duration(budget)}; raise it, "
            "or train on fewer rows (-s data.max_rows=...)"
        )

    def fits(seeds: int, epochs: int) -> bool:
        return seeds * (times * work.once(epochs) + measures) <= left

    def more_epochs(seeds: int, epochs: int, most: int) -> int:
        known = range(epochs + 1, most + 1) if work.selects else ()
        return max([epochs, *(e for e in known if work.nearly(e) > work.nearly(e - 1) and fits(seeds, e))])

    an_epoch = max(work.nearly(work.epochs) / work.epochs, 1.0)  # steps
    epochs = more_epochs(1, work.epochs, max(how.first[0], math.ceil(how.first[1] / an_epoch)))
    seeds = max(number for number in range(1, how.seeds + 1) if number == 1 or fits(number, epochs))
    epochs = more_epochs(seeds, epochs, max(EPOCHS, math.ceil(how.most / an_epoch)))
    notes = []
    if seeds < how.seeds:
        notes += [f"the budget allowed {seeds} of {SEEDS} seeds: the next training may differ by more than this"]
    steps = work.steps(epochs)
    return TrainingPlan([*work.paces], seeds, epochs, steps, spacing(steps, how.evaluations), notes)


def duration(seconds: float) -> str:
    """Return a time in words."""
    return f"{seconds:.2g} seconds" if seconds < 100 else f"{seconds / 60:.1f} minutes"


@dataclass
class _Stopwatch(Observer):
    """Notes when a training started and its steps ended, and how long an evaluation takes."""

    started: float = 0.0
    evaluation: float = 0.0
    steps: list[tuple[int, float]] = field(default_factory=list)

    def start(self, done: int, steps: int) -> None:
        self.started = time.monotonic()
        self.steps = [(0, self.started)]

    def step(self, record: StepRecord) -> None:
        self.steps.append((record.step, time.monotonic()))

    def evaluated(self, step: int, score: float, best: bool) -> None:
        self.evaluation = time.monotonic() - self.steps[-1][1]
        if step == 0:
            self.steps = [(0, time.monotonic())]


def time_training(settings: Settings, prepared: Path, kept: KeptVectors | None = None) -> Pace:
    """Train a few steps that nobody keeps; what is done first warms up."""
    few = min(_STEPS, settings.train.max_steps or _STEPS)
    short = settings_with(settings, {"train.max_steps": few, "train.eval_every": _STEPS})
    watch, begun = _Stopwatch(), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        open_training(short, prepared, scratch=Path(scratch), kept=kept).run(watch)
    (first, since), (last, until) = (watch.steps[1] if len(watch.steps) > 2 else watch.steps[0]), watch.steps[-1]
    return Pace(watch.started - begun, (until - since) / (last - first), watch.evaluation)
