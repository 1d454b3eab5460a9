"""How a batch is cut, for speed, memory or workers, is not part of the objective: every system, slices of unequal size.

The reference is what the papers' code does: one worker, all rows in one slice, padded to the longest. Slices here have
unequal numbers of rows, and of other lengths, so that whatever a term averages over a slice shows. Workers:
``test_group``.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.parts import Cut
from tests.training.systems import SYSTEMS, assert_same_step, make_system, take_step

ROWS = np.array([3, 17, 0, 9, 31, 5, 22])  # 14 sentences of two views, 21 of three
CUTS = (Cut(4, None), Cut(1, 4), Cut(3, 5))
CASES = [*((name, "bert") for name in SYSTEMS), ("d2cse", "roberta")]  # whose padding has another position


@pytest.mark.parametrize(("name", "family"), CASES)
def test_slices_are_not_part_of_the_objective(folders, name, family):
    whole = take_step(name, folders[family], ROWS, Cut(1, None))
    assert len(whole["slices"]) == 1 and whole["terms"]["loss"] > 0.01
    unequal = 0
    for cut in CUTS:
        found = take_step(name, folders[family], ROWS, cut)
        rows, lengths = zip(*found["slices"], strict=True)
        assert len(rows) > 2 and len(set(lengths)) > 1
        unequal += len(set(rows)) > 1
        assert_same_step(found, whole)
    assert unequal == len(CUTS)


@pytest.mark.parametrize(("name", "kept"), [("collection", False), ("queue", True)])
def test_a_saved_state_holds_only_what_does_not_follow_from_the_data(folders, name, kept):
    _, losses, _ = make_system(name, folders["bert"], dropout=0.0)
    assert bool(losses.memory()) is kept
