"""Densities of cosines: groups of gold scores, and the kernel estimate against one written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cse.data.suite import read_stsb
from cse.evaluation.space import ALL, densities

SENTEVAL = Path(__file__).parents[3] / "shared/data/senteval"


def reference(cosine, grid):
    """Gaussian kernels with Scott's bandwidth, in float64."""
    width = cosine.std(ddof=1) * len(cosine) ** (-1 / 5)
    kernels = np.exp(-0.5 * ((grid[:, None] - cosine[None]) / width) ** 2) / np.sqrt(2 * np.pi)
    return kernels.sum(axis=1) / (len(cosine) * width)


def test_each_curve_is_the_kernel_estimate_of_its_group():
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, 200)
    cosine = np.tanh(gold / 5 + rng.normal(0, 0.2, 200))
    curves = densities(cosine, gold)
    assert [curve.group for curve in curves] == [ALL, "[0, 1)", "[1, 2)", "[2, 3)", "[3, 4)", "[4, 5]"]
    members = [np.ones(200, bool), *(np.floor(gold) == group for group in range(5))]
    for curve, chosen in zip(curves, members, strict=True):
        assert curve.pairs == chosen.sum()
        np.testing.assert_allclose(curve.density, reference(cosine[chosen], curve.cosine), rtol=1e-9)
    assert curves[0].cosine[-1] == 1.0


def test_a_group_without_two_different_cosines_has_no_curve():
    gold = np.array([0.5, 0.6, 1.5, 4.5, 4.6])
    cosine = np.array([0.1, 0.3, 0.5, 0.8, 0.8])
    assert [curve.group for curve in densities(cosine, gold)] == [ALL, "[0, 1)"]


@pytest.mark.shared_data
@pytest.mark.skipif(not SENTEVAL.is_dir(), reason="no evaluation data here")
@pytest.mark.parametrize(("split", "pairs"), [("test", [243, 198, 265, 335, 338]), ("dev", [344, 254, 273, 365, 264])])
def test_groups_of_stsb(split, pairs):
    gold = read_stsb(SENTEVAL, split).score
    found = densities(np.random.default_rng(0).uniform(0, 1, len(gold)), gold)
    assert [curve.pairs for curve in found] == [len(gold), *pairs]
