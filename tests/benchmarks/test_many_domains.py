"""The check of the benchmark of many domains finds wrong answers."""

import numpy as np
import pytest

from benchmarks.many_domains import Known

VECTORS = np.eye(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("versions", "begin", "right"),
    [
        ([0], 5.0, True),  # in force when the request was sent
        ([1], 5.0, True),  # put in place before the answer
        ([0], 11.0, False),  # replaced before the request was sent
        ([2], 11.0, True),  # being put in place
        ([1, 1], 11.0, True),
        ([1, 2], 11.0, False),  # a mixture
    ],
)
def test_an_answer_is_of_one_version_in_force(versions, begin, right):
    known = object.__new__(Known)
    known.versions = {"a": list(zip((0.0, 10.0, float("inf")), VECTORS, strict=True))}
    assert known.right("a", VECTORS[versions], begin) == right
    assert not known.right("a", VECTORS[versions] + 0.01, begin)
