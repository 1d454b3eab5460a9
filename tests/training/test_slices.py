"""How a batch is cut, for speed, memory or workers, is not part of the objective: every system, slices of unequal size.

The reference is what the papers' code does: one worker, all rows in one slice, padded to the longest. Slices here have
unequal numbers of rows, and of other lengths, so that whatever a term averages over a slice shows. Workers:
``test_group``. Below it gradient caching: a batch that is encoded twice, slice by slice, with dropout on.
"""

from itertools import combinations

import numpy as np
import pytest
import torch

from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.batch import cheapest_cuts, slices_of
from tests.parts import Cut, new_plan
from tests.training.helpers import embed_rows, kept_bytes
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


def test_number_of_slices():
    def of(sentences, workers, row_groups=None, mini_batch_size=None):
        return slices_of(TrainSettings(row_groups=row_groups, mini_batch_size=mini_batch_size), sentences, workers)

    assert of(100, 1) is None, "as many as cost least"
    assert of(100, 3) == 6, "equal shares for the workers"
    assert of(100, 1, mini_batch_size=30) == 4, "no more than fit"
    assert of(100, 3, mini_batch_size=30) == 6
    assert of(100, 2, row_groups=5) == 6


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_step_in_bf16_is_near_one_in_float32(folder, name):
    exact, rounded = (take_step(name, folder, ROWS, Cut(2, None), precision=way) for way in ("fp32", "bf16"))
    for term, value in exact["terms"].items():
        assert rounded["terms"][term] == pytest.approx(value, rel=0.03, abs=0.01), term
    both = [torch.cat([gradient.flatten() for gradient in way["gradients"].values()]) for way in (exact, rounded)]
    assert torch.cosine_similarity(*both, dim=0) > 0.95


MORE_ROWS = np.array([3, 17, 0, 9, 31, 5, 22, 8, 14, 30])


def direct_and_cached(name, folder, **how):
    """A step of four slices with dropout, and one that encodes each of four twice."""
    direct = take_step(name, folder, MORE_ROWS, Cut(4, None), dropout=0.1, **how)
    sentences = sum(rows for rows, _ in direct["slices"])
    cached = take_step(name, folder, MORE_ROWS, Cut(1, -(-sentences // 4)), dropout=0.1, **how)
    assert cached["passes"] > direct["passes"]
    return direct, cached


@pytest.mark.parametrize("name", SYSTEMS)
def test_two_passes_give_the_gradient_of_one_with_dropout_on(folder, name):
    direct, cached = direct_and_cached(name, folder)
    assert_same_step(cached, direct)
    still = take_step(name, folder, MORE_ROWS, Cut(4, None))
    assert still["terms"]["loss"] != pytest.approx(direct["terms"]["loss"], rel=1e-3), "dropout was off"


def test_augmented_copies_and_bf16(folder):
    augment = AugmentSettings(repeat_words=0.3, shuffle_tokens="paper", cut_features=0.2)
    direct, cached = direct_and_cached("promcse", folder, augment=augment)
    assert_same_step(cached, direct)
    direct, cached = direct_and_cached("d2cse", folder, precision="bf16")
    assert_same_step(cached, direct, 5e-3)  # states and their gradients are rounded to 8 bits, in another order


def test_what_is_kept_between_the_passes_does_not_grow_with_the_layers(folder):
    def kept(cut):
        encoder, losses, table = make_system("promcse", folder, dropout=0.1)
        return kept_bytes(lambda: losses(embed_rows(encoder, table, MORE_ROWS, new_plan(cut=cut))))

    assert kept(Cut(1, 5)) < kept(Cut(4, None)) / 10
