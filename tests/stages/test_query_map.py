"""A query map trained on rows of several sources: how often each comes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cse.training.collection import Targets, pairs_of
from cse.training.fit_post import fit_query_map


def rows(count: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"sent0": [f"q{n}" for n in numbers], "sent1": [f"d{n % 5}" for n in numbers]})


def test_a_source_has_its_weight_in_rows_for_each_of_the_main_one():
    pairs = pairs_of([(rows(60), True), (rows(4, 60), False), (rows(90, 64), False)])
    assert pairs.source.tolist() == [0] * 60 + [1] * 4 + [2] * 90
    times = pairs.times([0.5, 0.5])
    assert times[:60].tolist() == [1] * 60
    assert times[60:64].tolist() == [8] * 4, "30 rows"
    assert times[64:].tolist() == [1] * 90, "each once at least"
    assert pairs.only(np.array([1, 61])).times([1.0, 1.0]).tolist() == [1, 1]


def test_a_row_that_comes_often_is_learned_best():
    """Two queries with the same vector and other documents: the map follows the one that comes ten times as often."""
    queries = np.tile(np.array([[1.0, 1.0]], np.float32), (2, 1))
    targets = Targets(np.array([[0], [1]]), np.ones((2, 1), np.float32), np.full(2, -1))

    def mapped(times):
        made = fit_query_map(queries, np.eye(2, dtype=np.float32), targets, temperature=0.5, seed=0, times=times)
        return (queries @ made.matrix.numpy())[0]

    first, second = mapped(np.array([10, 1])), mapped(np.array([1, 10]))
    assert first[0] > first[1] + 0.1 and second[1] > second[0] + 0.1
    assert np.array_equal(mapped(None), mapped(np.array([1, 1])))
