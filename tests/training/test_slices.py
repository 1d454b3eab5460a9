"""How a batch is cut, for speed, memory or workers, is not part of the objective: every system, slices of unequal size.

The reference is what the papers' code does: one worker, all rows in one slice, padded to the longest. Slices here have
unequal numbers of rows, and of other lengths, so that whatever a term averages over a slice shows. Workers:
``test_group``.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from cse.settings.train import TrainSettings
from cse.training.batch import cheapest_cuts, slices_of
from tests.parts import Cut, backbone_of
from tests.training.helpers import copies
from tests.training.systems import SYSTEMS, assert_same_step, take_step

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


LENGTHS = np.array([3, 3, 4, 5, 5, 5, 9, 9, 12, 30])


def price(cuts, cost):
    parts = np.split(LENGTHS, list(cuts))
    return sum(len(part) * part[-1] + cost for part in parts)


@pytest.mark.parametrize("cost", [0.0, 2.5, 7.0, 20.0, 80.0, 1000.0])
def test_no_other_way_to_cut_costs_less(cost):
    found = cheapest_cuts(LENGTHS, cost)
    ways = [way for count in range(len(LENGTHS)) for way in combinations(range(1, len(LENGTHS)), count)]
    assert price(found, cost) == pytest.approx(min(price(way, cost) for way in ways))
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("cut", "sentences", "workers", "slices"),
    [
        (Cut(None, None), 100, 1, None),  # as many as cost least
        (Cut(None, None), 100, 3, 6),  # equal shares for the workers
        (Cut(None, 30), 100, 1, 4),  # no more than fit
        (Cut(None, 30), 100, 3, 6),
        (Cut(5, None), 100, 2, 6),
    ],
)
def test_number_of_slices(cut, sentences, workers, slices):
    assert slices_of(TrainSettings(**cut._asdict()), sentences, workers) == slices


def states(backbone, *, bf16):
    torch.manual_seed(1)
    embedded, mask = torch.randn(3, 5, backbone.hidden_size), torch.ones(3, 5, dtype=torch.int64)
    mask[1, 3:] = 0
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        return backbone.run(embedded, backbone.positions(mask, 0), mask, None)


def test_weights_are_rounded_once_and_stay_in_float32(folder):
    backbone = backbone_of(folder).requires_grad_(False)
    before = copies(backbone.state_dict())
    rounded, again = (states(backbone, bf16=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(rounded, again, strict=True))
    assert {state.dtype for state in rounded} == {torch.bfloat16}
    for one, other in zip(states(backbone, bf16=False), rounded, strict=True):
        assert 0 < (one - other).abs().max() < 0.05 * one.abs().max()
    after = backbone.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert {weight.dtype for weight in backbone.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_step_in_bf16_is_near_one_in_float32(folder, name):
    exact, rounded = (take_step(name, folder, ROWS, Cut(2, None), precision=way) for way in ("fp32", "bf16"))
    for term, value in exact["terms"].items():
        assert rounded["terms"][term] == pytest.approx(value, rel=0.03, abs=0.01), term
    both = [torch.cat([gradient.flatten() for gradient in way["gradients"].values()]) for way in (exact, rounded)]
    assert torch.cosine_similarity(*both, dim=0) > 0.95
