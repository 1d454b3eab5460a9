"""Cosines against a computation written out in float64, and scores that do not exist; others: ``test_sts``."""

import math

import numpy as np
import pytest

from cse.errors import CseError
from cse.evaluation.measures import UndefinedScore, pair_cosines, spearman


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], "STS12: all 3 similarities are equal"),
        ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0], "STS12: all 3 gold scores are equal"),
        ([1.0], [1.0], "STS12: a rank correlation needs at least 2 pairs, found 1"),
    ],
)
def test_a_score_that_does_not_exist_names_the_task(x, y, expected):
    with pytest.raises(UndefinedScore, match=expected) as caught:
        spearman(np.array(x), np.array(y), "STS12")
    assert isinstance(caught.value, CseError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_cosines_agree_with_a_float64_sum(dtype):
    a, b = np.random.default_rng(3).normal(size=(2, 20, 384)).astype(dtype)
    expected = []
    for u, v in zip(a.astype(np.float64), b.astype(np.float64), strict=True):
        expected.append(math.fsum(u * v) / math.sqrt(math.fsum(u * u) * math.fsum(v * v)))
    cosines = pair_cosines(a, b)
    assert cosines.dtype == np.float64
    assert cosines.shape == (20,)
    np.testing.assert_allclose(cosines, expected, rtol=0, atol=1e-14)


def test_equal_pairs_tie_exactly():
    a, b = np.random.default_rng(6).normal(size=(2, 500, 384)).astype(np.float32)
    assert set(pair_cosines(a, a)) == {1.0}
    assert np.array_equal(pair_cosines(a, b), pair_cosines(b, a))


def test_a_cosine_that_is_no_number_counts_as_zero():
    a = np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [3.0, 4.0]])
    b = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(pair_cosines(a, b), [0.0, 0.0, 0.0, 1.0])
