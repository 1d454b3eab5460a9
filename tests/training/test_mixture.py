"""Which source and rows a step has: proportions, passes that go on over epochs, and no false negatives."""

from __future__ import annotations

from collections import Counter

import numpy as np

from cse.training.batches import Batches, Mixture, RowOrder

# epochs of 7 batches of the main source (27 rows), 4 of the second (7 * 0.5, rounded) and 14 of the third
THREE = [RowOrder(27), RowOrder(10, weight=0.5), RowOrder(5, weight=2.0)]


def steps_of(mixture: Mixture) -> list[tuple[int, int, list[int]]]:
    return [(table, passes, rows.tolist()) for table, passes, rows in map(mixture.at, range(mixture.steps))]


def test_an_epoch_is_a_pass_over_the_main_source_and_its_share_of_the_others():
    found = steps_of(Mixture(THREE, batch_size=4, epochs=2, seed=3))
    assert len(found) == 2 * (7 + 4 + 14)
    for epoch in (found[:25], found[25:]):
        assert Counter(table for table, _, _ in epoch) == {0: 7, 1: 4, 2: 14}
        assert sorted(row for table, _, rows in epoch if table == 0 for row in rows) == list(range(27))
    tables = [[table for table, _, _ in epoch] for epoch in (found[:25], found[25:])]
    assert tables[0] != tables[1]
    assert all(part != sorted(part) for part in tables)


def test_the_main_source_keeps_its_own_order_beside_others():
    alone = Batches(RowOrder(27), batch_size=4, epochs=2, seed=3)
    own = [
        (passes, rows) for table, passes, rows in steps_of(Mixture(THREE, batch_size=4, epochs=2, seed=3)) if not table
    ]
    assert own == [(epoch, rows.tolist()) for epoch, rows in map(alone.at, range(14))]
    single = Mixture([RowOrder(27)], batch_size=4, epochs=2, seed=3)
    assert steps_of(single) == [(0, *one) for one in own]


def test_passes_over_another_source_go_on_from_epoch_to_epoch():
    """Ten rows make batches of 4, 4 and 2; four batches an epoch leave each pass somewhere else."""
    found = [one for one in steps_of(Mixture(THREE, batch_size=4, epochs=3, seed=3)) if one[0] == 1]
    assert [passes for _, passes, _ in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [len(rows) for _, _, rows in found] == [4, 4, 2] * 4
    whole = [[row for _, passes, rows in found if passes == number for row in rows] for number in range(4)]
    assert all(sorted(rows) == list(range(10)) for rows in whole)
    assert len({tuple(rows) for rows in whole}) == 4


def test_every_source_keeps_rows_of_one_text_apart():
    """Six rows of a text make six batches of each pass over that source, of 2, 2, 2, 2, 1 and 1 rows."""
    keys = np.array([0] * 6 + [-1] * 4)[:, None]
    tables = [RowOrder(8, np.full((8, 1), -1)), RowOrder(10, keys, weight=2.0)]
    mixture = Mixture(tables, batch_size=4, epochs=3, seed=1)
    found = [rows for table, _, rows in steps_of(mixture) if table == 1]
    assert len(found) == 3 * 4, "two batches of the main source, times two"
    assert sorted(map(len, found)) == [1] * 4 + [2] * 8
    assert all(sum(row < 6 for row in rows) == 1 for rows in found)
