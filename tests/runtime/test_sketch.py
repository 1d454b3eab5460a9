"""The sketch of drift against numpy on all vectors at once: merging, forgetting, and what distances mean."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from cse.errors import CseError
from cse.runtime.sketch import Moments, Sketch, distance, read_sketch, sketch_of, write_sketch

WIDTH = 24


def draw(count, seed=0, shift=0.0, scale=1.0):
    """Unit vectors around one direction; ``shift`` turns it."""
    random = np.random.default_rng(seed)
    centre = np.zeros(WIDTH)
    centre[0], centre[1] = 3.0, shift
    rows = centre + scale * random.normal(size=(count, WIDTH))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def weighted(rows, half_life):
    """Mean, unbiased variance and effective count, from the definition."""
    rows = rows.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    weights = 0.5 ** (np.arange(len(rows))[::-1] / half_life)
    mean = np.average(rows, axis=0, weights=weights)
    freedom = weights.sum() - (weights**2).sum() / weights.sum()
    return mean, (weights[:, None] * (rows - mean) ** 2).sum(axis=0) / freedom, weights.sum() ** 2 / (weights**2).sum()


def assert_equal(found: Moments, mean, variance, count):
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-10)
    assert found.count == pytest.approx(count, rel=1e-10)


# ---- sums -----------------------------------------------------------------------------------------------------------


def test_without_forgetting_it_is_numpys_mean_and_variance():
    rows = draw(3000)
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    assert_equal(sketch_of(rows), unit.mean(axis=0), unit.var(axis=0, ddof=1), 3000)


@pytest.mark.parametrize("half_life", [7, 100, 10_000])
@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [5, 5, 400], range(1, 900)])
def test_batches_of_any_size_give_what_all_at_once_gives(half_life, cuts):
    rows, found = draw(900), Sketch(WIDTH, half_life)
    for part in np.split(rows, cuts):
        found.add(part)
    assert_equal(found.moments(), *weighted(rows, half_life))
    assert found.texts == 900


@pytest.mark.parametrize("half_life", [None, 50])
def test_merging_is_adding_the_later_ones(half_life):
    rows, whole, parts = draw(500), Sketch(WIDTH, half_life), [Sketch(WIDTH, half_life) for _ in range(4)]
    whole.add(rows)
    for part, some in zip(parts, (rows[:100], rows[100:101], rows[:0], rows[101:]), strict=True):
        part.add(some)
    for later in parts[1:]:
        parts[0].merge(later)
    expected = whole.moments()
    assert_equal(parts[0].moments(), expected.mean, expected.variance, expected.count)
    assert parts[0].texts == 500
    with pytest.raises(CseError, match="cannot be merged"):
        whole.merge(Sketch(WIDTH, 51))


def test_lengths_do_not_matter_and_a_zero_vector_is_no_error():
    rows = draw(50)
    lengths = np.random.default_rng(1).uniform(0.1, 9, (50, 1))
    np.testing.assert_allclose(sketch_of(rows * lengths).mean, sketch_of(rows).mean, atol=1e-7)
    assert np.isfinite(sketch_of(np.zeros((3, WIDTH))).mean).all()


def test_a_million_vectors_lose_no_digits():
    """Summing squares in float32 would lose a spread this small."""
    rows, found = draw(1000, scale=1e-3), Sketch(WIDTH, None)
    for _ in range(1000):
        found.add(rows)
    expected = sketch_of(rows)
    np.testing.assert_allclose(found.moments().variance, expected.variance * 999 / 1000, rtol=2e-6)


def test_the_old_is_forgotten():
    found = Sketch(WIDTH, half_life=200)
    old, new = draw(5000, 1), draw(5000, 2, shift=3.0)
    reference = sketch_of(new)
    found.add(old)
    before = found.distance(reference)
    found.add(new[:200])
    assert found.distance(reference) < before / 2, "half of the old weight is gone"
    found.add(new[200:])
    assert found.distance(reference) < 0.01
    assert found.texts == 10_000
    assert found.moments().count == pytest.approx(2 * 200 / np.log(2), rel=0.01)


def test_several_threads_add():
    found, rows = Sketch(WIDTH, half_life=None), draw(4000)
    threads = [
        threading.Thread(target=lambda part=part: [found.add(one) for one in np.split(part, 100)])
        for part in np.split(rows, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sketch_of(rows)
    assert_equal(found.moments(), expected.mean, expected.variance, 4000)


# ---- distances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "others"), [(10, 2000), (50, 2000), (500, 50), (2000, 2000), (20_000, 2000)])
def test_without_drift_the_distance_is_about_zero_whatever_the_counts(count, others):
    """The bias that is subtracted is that of the plain distance, which is far from zero for few vectors."""
    found, plain = [], []
    for seed in range(40):
        here, reference = sketch_of(draw(count, 2 * seed)), sketch_of(draw(others, 2 * seed + 1))
        found.append(distance(here, reference))
        means = ((here.mean - reference.mean) ** 2).sum()
        spreads = ((np.sqrt(here.variance) - np.sqrt(reference.variance)) ** 2).sum()
        plain.append((means + spreads) / reference.variance.sum())
    chance = 1 / count + 1 / others
    assert np.mean(plain) == pytest.approx(1.5 * chance, rel=0.15)
    assert np.mean(found) < 0.25 * chance
    assert max(found) < 1.5 * chance
    assert min(found) >= 0


def test_a_shift_gives_the_computed_value():
    """Both groups' moments are known, so the distance is too."""
    here = Moments(np.array([0.5, 0.1, 0.0]), np.array([0.04, 0.01, 0.09]), 1e12)
    there = Moments(np.array([0.2, 0.1, 0.4]), np.array([0.01, 0.01, 0.16]), 1e12)
    assert distance(here, there) == pytest.approx((0.09 + 0.16 + 0.1**2 + 0.1**2) / 0.18)
    assert distance(there, here) == pytest.approx((0.09 + 0.16 + 0.1**2 + 0.1**2) / 0.14)
    moved = Moments(there.mean + np.sqrt(0.18 / 3), there.variance, 1e12)
    assert distance(moved, there) == pytest.approx(1), "the mean moved as far as the texts spread"


def test_drawn_vectors_give_the_value_of_their_distributions():
    exact = [sketch_of(draw(400_000, seed, shift=shift)) for seed, shift in ((1, 0.0), (2, 1.5))]
    expected = distance(exact[1], exact[0])
    assert expected > 0.05
    found = [distance(sketch_of(draw(200, seed, shift=1.5)), exact[0]) for seed in range(3, 60)]
    assert np.mean(found) == pytest.approx(expected, rel=0.03), "few vectors give the same on average"


@pytest.mark.parametrize("rows", [draw(0), draw(1), np.repeat(draw(1), 5, axis=0)])
def test_what_has_no_spread_has_no_distance(rows):
    assert distance(sketch_of(draw(50)), sketch_of(rows)) is None
    assert (distance(sketch_of(rows), sketch_of(draw(50))) is None) == (len(rows) < 2)


# ---- on disk --------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    moments = sketch_of(draw(100))
    write_sketch(tmp_path / "one", moments)
    found = read_sketch(tmp_path / "one", WIDTH)
    np.testing.assert_array_equal(found.mean, moments.mean)
    np.testing.assert_array_equal(found.variance, moments.variance)
    assert found.count == 100


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean": np.zeros(WIDTH - 1)}, "of 24 numbers"),
        ({"mean": np.full(WIDTH, np.nan)}, "not those of vectors"),
        ({"variance": np.full(WIDTH, -1.0)}, "not those of vectors"),
        ({"variance": np.zeros(WIDTH)}, "not those of vectors"),
        ({"count": 1}, "not those of vectors"),
    ],
)
def test_a_file_that_is_no_sketch_is_refused(tmp_path, changes, said):
    right = {"mean": np.zeros(WIDTH), "variance": np.ones(WIDTH), "count": 9}
    write_sketch(tmp_path / "one", Moments(**(right | changes)))
    with pytest.raises(CseError, match=said):
        read_sketch(tmp_path / "one", WIDTH)
    (tmp_path / "one").write_bytes(b"something else")
    with pytest.raises(CseError, match="not a sketch"):
        read_sketch(tmp_path / "one", WIDTH)
