"""How the time of an adaptation is spent."""

from __future__ import annotations

import pytest

from cse.adapt.budget import Spend, check_budget
from cse.errors import CseError


@pytest.mark.parametrize(
    ("left", "full", "seeds", "epochs"),
    [
        (10, False, 1, 1),  # less than one training
        (260, False, 2, 1),
        (390, False, 3, 1),  # 3 x (100 + 30)
        (700, False, 3, 2),  # 700 / 3 - 30 = 203 s for each
        (700, True, 2, 1),  # 130 s are 338 with full fine-tuning
        (10_000, False, 3, 10),
    ],
)
def test_seeds_come_before_epochs(left, full, seeds, epochs):
    spend = Spend(left, training=100, measuring=30, full=full)
    assert (spend.seeds, spend.epochs(1)) == (seeds, epochs)


def test_epochs_that_the_user_asks_for_are_the_least():
    assert Spend(390, training=100, measuring=30, full=False).epochs(4) == 4


def test_a_budget_for_one_training():
    """10 s for 1,000 texts: 4,000 texts in training take 120 s, with 5 s spent and 10 s to measure 135 s."""
    check_budget(135, spent=5, measuring=10, measured=1000, to_train=4000)
    with pytest.raises(CseError, match=r"^--budget: one training and its measures need 2 minutes here, .* is 2.2; "):
        check_budget(134, spent=5, measuring=10, measured=1000, to_train=4000)
