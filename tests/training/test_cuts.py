"""Slices that cost least: fewest padded tokens plus a fixed cost per slice, against trying every way to cut."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from cse.settings.train import TrainSettings
from cse.training.batch import cheapest_cuts, pad_in_groups, slices_of
from tests.parts import Cut
from tests.training.helpers import make_table

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


def test_every_row_is_in_one_slice_with_its_own_tokens(bert):
    table, rows = make_table(bert, 40), np.array([5, 0, 33, 17, 8, 21, 2])
    slices = pad_in_groups(table, rows, None, cost=5.0)
    assert 1 < len(slices) < 14
    assert sorted(np.concatenate([part.places for part in slices])) == list(range(len(table.columns) * len(rows)))
    for part in slices:
        for place, ids, mask, view in zip(part.places, part.ids_BL, part.mask_BL, part.views, strict=True):
            column, row = table.columns[view], rows[place % len(rows)]
            assert ids[mask == 1].tolist() == column.row(row).tolist()
            assert (ids[mask == 0] == table.pad_id).all()
