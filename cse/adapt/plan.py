"""What an adaptation will train, decided once and before it trains: learning rates to try, seeds and epochs.

The plan follows from the budget and from how fast this machine trains and measures. It is written down, and what is
done later follows it alone: no clock decides anything any more, so a killed adaptation ends in the same model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cse.adapt.ladder import FULL, PROMPTS, QUERY_PROMPTS
from cse.errors import CseError, counted
from cse.stages.place import spacing

SEEDS, EPOCHS = 3, 10  # at most
EVALUATIONS = 8  # on the dev task, in a training; one more before it
_FOR_SEARCH, _FOR_SEARCH_OF_LABELS = 0.5, 0.1  # share of the time that tries learning rates
# epochs and steps before a second seed, of labelled rows: the held-out score rises steeply until then
_EPOCHS_OF_LABELS, _STEPS_OF_LABELS, _STEPS_OF_FEW = 4, 120, 60
_MOST_STEPS_OF_LABELS = 600  # where ten epochs are fewer; of few rows more than those cost accuracy
# learning rates to try, the likely ones first, since a short budget tries fewer; labels bear higher ones
_RATES: dict[str, tuple[float, ...]] = {
    PROMPTS: (0.01, 0.03, 0.003, 0.1),
    FULL: (5e-5, 1.5e-4, 1.5e-5),
    QUERY_PROMPTS: (),
}
_RATES_OF_LABELS: dict[str, tuple[float, ...]] = {PROMPTS: (0.1, 0.2, 0.05), FULL: (2e-4, 5e-4, 5e-5)}
_RATES_OF_FEW = _RATES_OF_LABELS | {FULL: (5e-5, 1e-4)}  # more steps or a higher rate cost accuracy: docs/results.md


def rates_of(view: str, system: str, own: float, few: bool = False) -> tuple[float, ...]:
    """Return the learning rates to try for a system, that of the settings (``own``, of prompts) first."""
    if system == QUERY_PROMPTS:
        return (own,)
    known = (_RATES_OF_FEW if few else _RATES_OF_LABELS if view == "categories" else _RATES)[system]
    return known if system == FULL else tuple(dict.fromkeys((own, *known)))


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
        rates: learning rates worth trying by system, the likely ones first.
        measuring: seconds that measuring one model takes.
        epochs: of a training, at least.
        steps: returns the steps of a training of so many epochs.
        max_steps: of any training; None: as many as its epochs have.
        selects: whether something chooses among rates, and keeps the best of more epochs.
        labelled: whether the rows are pairs within labels: their first rate is known to do, and epochs pay most.
        few: whether labelled rows are few: a trial of an epoch tells nothing, and what was chosen is trained again.
        seeds: to train with, at most.
    """

    rates: Mapping[str, Sequence[float]]
    paces: Mapping[str, Pace]
    measuring: float
    epochs: int
    steps: Callable[[int], int]
    max_steps: int | None
    selects: bool
    labelled: bool = False
    few: bool = False
    seeds: int = SEEDS

    @cached_property
    def _least(self) -> int:
        return self.steps(self.epochs)

    def nearly(self, epochs: int) -> float:
        """Return about the steps of a training of so many epochs, without going through the rows of each."""
        steps = self._least * epochs / self.epochs
        return min(steps, self.max_steps or steps)

    def once(self, epochs: int) -> float:
        """Return the seconds of one training of each system."""
        return max(sum(pace.training(self.nearly(epochs)) for pace in self.paces.values()), 1e-3)

    @property
    def measures(self) -> float:
        """Seconds that measuring one model of each system takes."""
        return self.measuring * len(self.paces)

    def without_the_last(self) -> Workload:
        """Return the same without the last system."""
        *kept, _ = self.paces
        return replace(self, rates={one: self.rates[one] for one in kept}, paces={one: self.paces[one] for one in kept})

    def length(self, epochs: int) -> Length:
        """Return how long a training of so many epochs is.

        Of few labelled rows the last weights are scored alone: trained again on every row, nothing chooses others.
        """
        steps = self.steps(epochs)
        return Length(epochs, steps, spacing(steps, 1 if self.labelled and self.few else EVALUATIONS))


@dataclass(frozen=True)
class Length:
    """How long a training is."""

    epochs: int
    steps: int
    eval_every: int

    @property
    def settings(self) -> dict[str, int]:
        """The settings by dotted key."""
        return {"train.epochs": self.epochs, "train.eval_every": self.eval_every}


@dataclass(frozen=True)
class TrainingPlan:
    """What is trained.

    Attributes:
        rates: learning rates to try, by system; a single one is not tried but taken.
        seeds: to train with, 1 to ``SEEDS``.
        training: how long that of each seed is. If it is a trial's, the best trial is the first seed's model.
        selects: whether something chooses among rates, given the time.
    """

    rates: Mapping[str, Sequence[float]]
    seeds: int
    trial: Length
    training: Length
    selects: bool

    def __str__(self) -> str:
        tried = "; ".join(
            f"learning rate{'s' if len(rates) > 1 else ''} {', '.join(f'{rate:g}' for rate in rates)} ({system})"
            for system, rates in self.rates.items()
        )
        return (
            f"{tried}; {counted(self.seeds, 'seed')} of {counted(self.training.epochs, 'epoch')} "
            f"({self.training.steps:,} steps)"
        )

    @property
    def notes(self) -> list[str]:
        """What the user should know of what the budget did not allow."""
        notes = []
        if self.seeds < SEEDS:
            notes.append(
                f"the budget allowed {self.seeds} of {SEEDS} seeds: the next training may differ by more than this"
            )
        if self.selects and max(map(len, self.rates.values())) == 1:
            notes.append("the budget allowed one learning rate: another may do better")
        return notes


def make_plan(work: Workload, *, budget: float, spent: float) -> TrainingPlan:
    """Plan for a budget: half of it at most tries learning rates, the rest goes into more seeds, then more epochs.

    A budget for two trainings tries two rates; one for a single training tries none. Of labelled rows a tenth tries
    rates, and four epochs, or 120 steps, come before a second seed. Of few ones nothing tries rates, 60 steps come
    first, ten epochs are the most, and there is time to train everything again. The last system is left out if the
    budget allows no training of each.

    Args:
        budget: seconds in all.
        spent: seconds so far.

    Raises:
        TooShortError: one training and its measures would exceed the budget.
    """
    left, once, times = budget - spent, work.once(work.epochs), 2 if work.few else 1
    if times * once + work.measures > left and len(work.paces) > 1:
        return make_plan(work.without_the_last(), budget=budget, spent=spent)
    if times * once + work.measures > left:
        needed = _told(spent + times * once + work.measures)
        raise TooShortError(
            f"--budget: one training and its measures need {needed} here, the budget is {_told(budget)}; raise it, or "
            "train on fewer rows (-s data.max_rows=...)"
        )
    trials = 1
    if work.selects and not work.few:
        share = _FOR_SEARCH_OF_LABELS if work.labelled else _FOR_SEARCH
        least = 2 if not work.labelled and 2 * once + work.measures <= left else 1
        trials = min(max(int(share * left // once), least), max(map(len, work.rates.values())))
    if trials > 1:
        left -= trials * once

    def fits(seeds: int, epochs: int) -> bool:
        tried = once if trials > 1 and epochs == work.epochs else 0.0  # the best trial is the first seed's model
        return seeds * (times * work.once(epochs) + work.measures) - tried <= left

    def more_epochs(seeds: int, epochs: int, most: int) -> int:
        known = range(epochs + 1, most + 1) if work.selects else ()
        return max([epochs, *(e for e in known if work.nearly(e) > work.nearly(e - 1) and fits(seeds, e))])

    before, most = work.epochs, EPOCHS
    if work.labelled:
        an_epoch = max(work.nearly(work.epochs) / work.epochs, 1.0)
        steps, at_most = (_STEPS_OF_FEW,) * 2 if work.few else (_STEPS_OF_LABELS, _MOST_STEPS_OF_LABELS)
        before = max(_EPOCHS_OF_LABELS, math.ceil(steps / an_epoch))
        most = max(EPOCHS, math.ceil(at_most / an_epoch))
    epochs = more_epochs(1, work.epochs, before)
    seeds = max(number for number in range(1, work.seeds + 1) if number == 1 or fits(number, epochs))
    epochs = more_epochs(seeds, epochs, most)
    rates = {system: list(known[:trials]) for system, known in work.rates.items()}
    return TrainingPlan(rates, seeds, work.length(work.epochs), work.length(epochs), work.selects and not work.few)


def _told(seconds: float) -> str:
    return f"{seconds:.2g} seconds" if seconds < 100 else f"{seconds / 60:.1f} minutes"
