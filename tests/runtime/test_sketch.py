"""The sketch of drift against numpy on all vectors at once: merging, forgetting, and what distances mean."""

from __future__ import annotations

import pickle
import threading
from copy import copy

import numpy as np
import pytest

from cse.errors import CseError
from cse.runtime import sketch as module
from cse.runtime.sketch import Moments, Sketch, distance, read_sketch, sketch_of, write_sketch

WIDTH = 24


def draw(count, seed=0, shift=0.0, scale=1.0):
    """Unit vectors around one direction; ``shift`` turns it."""
    random = np.random.default_rng(seed)
    centre = np.zeros(WIDTH)
    centre[0], centre[1] = 3.0, shift
    rows = centre + scale * random.normal(size=(count, WIDTH))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def weighted(rows, half_life, ages=None):
    """Mean, unbiased variance and effective count, from the definition; ``ages``: texts that came after each."""
    rows = rows.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    weights = 0.5 ** ((np.arange(len(rows))[::-1] if ages is None else ages) / half_life)
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


# ---- texts that come again ------------------------------------------------------------------------------------------


def asked_often(count, texts, seed=0):
    """Places of the texts that are asked for, a few of them again and again."""
    shares = 1 / np.arange(1, texts + 1)
    return np.random.default_rng(seed).choice(texts, count, p=shares / shares.sum())


@pytest.mark.parametrize("half_life", [7, 100, 10_000])
@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [5, 5, 400], range(1, 900)])
def test_a_text_has_the_weight_of_its_last_time(half_life, cuts):
    rows, found, asked = draw(60), Sketch(WIDTH, half_life), asked_often(900, 60)
    for part in np.split(asked, cuts):
        found.add(rows[part], part.tolist())
    last = {text: place for place, text in enumerate(asked.tolist())}
    ages = 899 - np.array(list(last.values()))
    assert_equal(found.moments(), *weighted(rows[list(last)], half_life, ages))
    assert found.texts == 900


def test_texts_that_replicas_share_count_once():
    """All of it in one sketch and in two, each text in both: the same mean, and as many texts."""
    rows, parts = draw(30), [Sketch(WIDTH), Sketch(WIDTH), Sketch(WIDTH)]
    for seed, part in enumerate(parts):
        asked = [*range(30), *asked_often(50, 30, seed)]
        part.add(rows[asked], asked)
    both = Sketch(WIDTH)
    for part in parts:
        both.join(pickle.loads(pickle.dumps(part)))
    once = sketch_of(rows)
    assert both.moments().count == pytest.approx(30, abs=0.01)
    np.testing.assert_allclose(both.moments().mean, once.mean, atol=1e-3)
    np.testing.assert_allclose(both.moments().variance, once.variance, rtol=0.05)


def test_a_few_texts_again_and_again_have_not_moved_and_others_have():
    reference = sketch_of(draw(2000, 1))
    asked = asked_often(5000, 25)
    for seed in range(2, 12):
        own, others = Sketch(WIDTH), Sketch(WIDTH)
        own.add(draw(25, seed)[asked], asked.tolist())
        others.add(draw(25, seed, shift=3.0)[asked], asked.tolist())
        assert own.distance(reference) < 0.1
        assert others.distance(reference) > 0.2


def test_one_text_without_end_is_one_text():
    found, row = Sketch(WIDTH, half_life=None), draw(1)
    for _ in range(3):
        found.add(np.repeat(row, 1000, axis=0), [5] * 1000)
    assert found.moments().count == pytest.approx(1)
    assert found.moments().variance.sum() == 0
    assert found.distance(sketch_of(draw(50))) is None


def test_it_knows_so_many_texts_and_a_copy_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(module, "KNOWN", 10)
    found, rows = Sketch(WIDTH), draw(30)
    found.add(rows, range(30))
    before = copy(found)
    found.add(rows[[29, 0]], [29, 0])
    assert found.moments().count == pytest.approx(31, rel=1e-4), "the last is known, the first as if new"
    assert (len(found._known), len(before._known), 0 in before._known) == (10, 10, False)


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
