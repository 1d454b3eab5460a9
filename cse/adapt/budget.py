"""How an adaptation spends its time: whether one training fits, and how many seeds and epochs the rest allows."""

from __future__ import annotations

from dataclasses import dataclass

from cse.errors import CseError

SEEDS, EPOCHS = 3, 10  # at most
_PASSES = 3  # a training step costs about as much as this many encodings of its texts
FULL_COSTS = 1.6  # a full fine-tuning, in trainings of prompts


def check_budget(budget: float, spent: float, measuring: float, measured: int, to_train: int) -> None:
    """Refuse a budget that one training and its measures would exceed, judging by how long the backbone took.

    Args:
        budget: seconds in all.
        spent: seconds so far.
        measuring: seconds that one measuring takes.
        measured: texts that it encodes.
        to_train: texts of one training, epochs included.

    Raises:
        CseError: the budget is too short.
    """
    needed = spent + measuring + _PASSES * to_train * measuring / max(measured, 1)
    if needed > budget:
        raise CseError(
            f"--budget: one training and its measures need {max(needed / 60, 1):.0f} minutes here, the budget is "
            f"{budget / 60:.1f}; raise it, or train on fewer rows (-s data.max_rows=...)"
        )


@dataclass(frozen=True)
class Spend:
    """Time that is left after the search.

    Attributes:
        left: seconds.
        training: seconds of a training so far.
        measuring: seconds of its measures.
        full: whether each training is followed by a full fine-tuning.
    """

    left: float
    training: float
    measuring: float
    full: bool

    @property
    def _systems(self) -> float:
        return 1 + FULL_COSTS * self.full

    @property
    def seeds(self) -> int:
        """Seeds to train with, 1 to ``SEEDS``."""
        each = (self.training + self.measuring) * self._systems
        return max(1, min(SEEDS, int(self.left // max(each, 1.0))))

    def epochs(self, trained: int) -> int:
        """Return the epochs of each seed, up to ``EPOCHS``, if a training so far had ``trained``."""
        seconds = self.left / self.seeds / self._systems - self.measuring
        return max(trained, min(EPOCHS, int(trained * seconds // max(self.training, 1.0))))
