"""Densities of cosines: groups of gold scores, and the kernel estimate against one written out."""

from __future__ import annotations

import numpy as np

from cse.evaluation.space import ALL, densities


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
