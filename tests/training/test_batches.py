"""Batches without false negatives: which rows meet, how many batches that takes, and that off is as ever."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from cse.training.batches import Batches, Mixture, RowOrder, distinct_batches, row_keys


@pytest.mark.parametrize(("rows", "batch_size", "kinds"), [(101, 8, (3,)), (250, 16, (40, 30)), (97, 2, (9, 9, 9))])
def test_no_two_rows_of_a_batch_share_a_key(rows, batch_size, kinds):
    rng = np.random.default_rng(rows)
    keys = np.stack([rng.integers(0, kind, rows) + 100 * place for place, kind in enumerate(kinds)], axis=1)
    for epoch in range(3):
        found = distinct_batches(keys, batch_size=batch_size, seed=1, epoch=epoch)
        assert sorted(np.concatenate(found)) == list(range(rows))
        assert max(map(len, found)) <= batch_size
        for batch in found:
            assert Counter(keys[batch].ravel().tolist()).most_common(1)[0][1] == 1
        least = max(-(-rows // batch_size), np.bincount(keys.ravel()).max())
        assert least <= len(found) <= (least if len(kinds) == 1 else 1.5 * least)


# epochs of 7 batches of the main source (27 rows), 4 of the second (7 * 0.5, rounded) and 14 of the third
THREE = [RowOrder(27), RowOrder(10, weight=0.5), RowOrder(5, weight=2.0)]


def steps_of(mixture: Mixture) -> list[tuple[int, int, list[int]]]:
    return [(table, passes, rows.tolist()) for table, passes, rows in map(mixture.at, range(mixture.steps))]


def test_an_epoch_is_a_pass_over_the_main_source_and_its_share_of_the_others():
    found, own = (
        steps_of(Mixture(THREE, batch_size=4, epochs=2, seed=3)),
        Batches(RowOrder(27), batch_size=4, epochs=2, seed=3),
    )
    tables = [[table for table, _, _ in epoch] for epoch in (found[:25], found[25:])]
    for epoch in tables:
        assert Counter(epoch) == {0: 7, 1: 4, 2: 14}
        assert epoch != sorted(epoch)
    assert tables[0] != tables[1]
    wanted = [(epoch, rows.tolist()) for epoch, rows in map(own.at, range(14))]
    assert [(passes, rows) for table, passes, rows in found if not table] == wanted, "its own order, as without others"
    assert steps_of(Mixture([RowOrder(27)], batch_size=4, epochs=2, seed=3)) == [(0, *one) for one in wanted]


def test_passes_over_another_source_go_on_from_epoch_to_epoch():
    """Ten rows make batches of 4, 4 and 2; four batches an epoch leave each pass somewhere else."""
    found = [one for one in steps_of(Mixture(THREE, batch_size=4, epochs=3, seed=3)) if one[0] == 1]
    assert [(passes, len(rows)) for _, passes, rows in found] == [(n // 3, (4, 4, 2)[n % 3]) for n in range(12)]
    whole = [[row for _, passes, rows in found if passes == number for row in rows] for number in range(4)]
    assert all(sorted(rows) == list(range(10)) for rows in whole)
    assert len({tuple(rows) for rows in whole}) == 4


def test_every_source_keeps_rows_of_one_text_apart():
    """Six rows of a text make six batches of each pass over that source, of 2, 2, 2, 2, 1 and 1 rows."""
    keys = np.array([0] * 6 + [1, 2, 3, 4])[:, None]
    tables = [RowOrder(8, np.arange(8)[:, None]), RowOrder(10, keys, weight=2.0)]
    mixture = Mixture(tables, batch_size=4, epochs=3, seed=1)
    found = [rows for table, _, rows in steps_of(mixture) if table == 1]
    assert len(found) == 3 * 4, "two batches of the main source, times two"
    assert sorted(map(len, found)) == [1] * 4 + [2] * 8
    assert all(sum(row < 6 for row in rows) == 1 for rows in found)


def test_a_text_keeps_rows_apart_in_any_view_and_a_group_those_of_its_own():
    """Rows 0 and 1 share an anchor, 2's positive is 0's anchor, 3 repeats its own text and meets anyone."""

    def batches_of(first, second, **group):
        rows = pa.table({"sent0": first, "sent1": second} | group)
        found = distinct_batches(row_keys(rows), batch_size=4, seed=3, epoch=0)
        assert sorted(row for batch in found for row in batch) == [0, 1, 2, 3], "every row once"
        return found

    found = batches_of(["cat", "cat", "dog", "owl"], ["kitten", "tomcat", "cat", "owl"])
    assert sorted(map(len, found)) == [1, 1, 2]
    assert all(np.isin(batch, [0, 1, 2]).sum() == 1 for batch in found)
    # a group named as a text is not that text: 1 and 2 may meet
    found = batches_of(["a", "b", "one", "x"], ["b", "c", "y", "z"], group=["one", "one", "two", "two"])
    assert sorted(map(len, found)) == [2, 2]
    assert all(np.isin(batch, [0, 1]).sum() == 1 for batch in found)
