"""Comparisons of two models: intervals and p values as scipy finds them, and how often chance is taken for a gain."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, precision_recall_curve

from cse.evaluation import comparison
from cse.evaluation.comparison import Chance, Outcomes, compare, compare_average, half_width_of_mean, holm
from cse.evaluation.dev_facts import SPEARMAN
from cse.evaluation.pairs import average_precisions, best_f1s, rank_correlations


def of_items(rng, *, gain=0.0, items=301, spread=0.1):
    """Scores of two models on items of very different difficulty."""
    difficulty_N = rng.uniform(0.2, 0.8, size=items)
    before_N = difficulty_N + spread * rng.normal(size=items)
    after_N = difficulty_N + gain + spread * rng.normal(size=items)
    return Outcomes(before_N[None]), Outcomes(after_N[None])


def test_the_interval_of_a_mean_is_that_of_scipy():
    before, after = of_items(np.random.default_rng(1), gain=0.01)
    found = compare(before, after)
    theirs = stats.bootstrap(
        (before.values[0], after.values[0]),
        lambda b, a, axis=-1: 100 * (a.mean(axis=axis) - b.mean(axis=axis)),
        paired=True, n_resamples=5000, method="percentile", rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert found.difference == pytest.approx(100 * float((after.values - before.values).mean()))
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.15)
    t = stats.ttest_rel(after.values[0], before.values[0]).pvalue
    assert found.p == pytest.approx(t, abs=0.05)
    assert (found.items, found.seeds) == (301, (1, 1))


def test_better_worse_and_neither_and_one_training_says_that_it_is_one():
    before, after = of_items(np.random.default_rng(3), gain=0.05)
    bare, twice = Outcomes(before.values, trained=False), Outcomes(np.repeat(after.values, 2, axis=0))
    assert compare(bare, after).one_training and not compare(bare, twice).one_training
    assert compare(before, twice).one_training, "the other side is trained too"
    found = compare(before, after)
    assert (found.verdict, compare(after, before).verdict) == ("better", "worse")
    assert found.p == pytest.approx(2 / 2001), "the smallest that 2,000 resamples can give"
    same = compare(before, before)
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)
    assert same.verdict == "no difference at this size"


@pytest.mark.parametrize("ties", [False, True])
def test_statistics_of_pairs_are_those_of_the_libraries(ties):
    rng = np.random.default_rng(5)
    cosine = rng.normal(size=157)
    cosine = cosine.round(1) if ties else cosine
    graded = (cosine + rng.normal(size=157)).round()
    classes = (graded > 0).astype(float)
    rows = np.stack([np.arange(157), rng.integers(157, size=157), rng.integers(157, size=157)])
    counts = np.stack([np.bincount(row, minlength=157) for row in rows]).astype(float)
    seeds = np.stack([cosine, np.roll(cosine, 1)])
    for found, reference, gold in (
        (rank_correlations, lambda c, g: stats.spearmanr(c, g).statistic, graded),
        (average_precisions, lambda c, g: average_precision_score(g, c), classes),
        (best_f1s, largest_f1, classes),
    ):
        expected = [[reference(seed[row], gold[row]) for seed in seeds] for row in rows]
        np.testing.assert_allclose(found(seeds, gold, counts), expected, atol=1e-12)


def largest_f1(cosine, classes):
    precision, recall, _ = precision_recall_curve(classes, cosine)
    return (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()


def test_pairs_are_resampled_with_their_gold_scores():
    rng = np.random.default_rng(7)
    gold = rng.uniform(0, 5, size=203)
    before = Outcomes((gold + 2.0 * rng.normal(size=203))[None], gold, SPEARMAN)
    after = Outcomes((gold + 1.0 * rng.normal(size=203))[None], gold, SPEARMAN)
    found = compare(before, after)
    assert found.before == pytest.approx(100 * stats.spearmanr(before.values[0], gold).statistic)
    theirs = stats.bootstrap(
        (before.values[0], after.values[0], gold),
        lambda b, a, g: 100 * (stats.spearmanr(a, g).statistic - stats.spearmanr(b, g).statistic),
        paired=True, vectorized=False, n_resamples=500, method="percentile", rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1.5)
    assert found.verdict == "better"
    two = Outcomes(np.array([[0.2, 0.4]]), np.array([0.0, 1.0]), SPEARMAN)  # some resamples have no correlation
    found = compare(two, two)
    assert (found.before, found.difference, found.verdict) == (100, 0, "no difference at this size")


RATIOS = (0, 0.5, 1, 2, 4, 8, 1e3)  # seed noise by item error, as standard deviations
SIMULATED = 40_000


def share_called_different(rng, *, ratio, seeds, others=0, other_noise=1.0):
    """How often two systems that are the same are told apart; the item error is 1, ``others`` seeds 0: a bare side."""
    true, sides = 1.0, []
    for count, noise in ((seeds, ratio), (others, ratio * other_noise)):
        if count == 0:
            sides.append((0.0, 0))
            continue
        true += noise**2 / count
        sides.append((noise**2 * rng.chisquare(count - 1, SIMULATED) / (count - 1) / count, count - 1))
    difference = true**0.5 * rng.normal(size=SIMULATED)
    return (np.abs(difference) > Chance(1.0, 10_000, *sides).half_width(0.05)).mean()


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_chance_passes_for_a_gain_over_the_bare_backbone_in_five_percent(seeds):
    rng = np.random.default_rng(seeds)
    found = {ratio: share_called_different(rng, ratio=ratio, seeds=seeds) for ratio in RATIOS}
    assert max(found.values()) < 0.055
    assert all(found[ratio] > 0.03 for ratio in (0, 4, 8, 1e3))
    assert min(found.values()) > {2: 0.01, 3: 0.02, 5: 0.03}[seeds], "wide where both errors are about as large"


@pytest.mark.parametrize(("seeds", "others", "at_four"), [(2, 2, 0.017), (5, 5, 0.035), (2, 3, 0.013)])
def test_chance_passes_for_a_difference_of_two_trainings_in_at_most_seven_percent(seeds, others, at_four):
    """Two seeds on each side cannot tell whose noise is the larger, so where both are alike the interval is wide."""
    rng = np.random.default_rng(10 * seeds + others)
    for noise in (1, 0.1, 0.3, 3, 10):
        for ratio in RATIOS:
            found = share_called_different(rng, ratio=ratio, seeds=seeds, others=others, other_noise=noise)
            assert found < 0.07 + 0.003, (noise, ratio)  # 0.003: more than two errors of the simulation
            assert (noise, ratio) != (1, 4) or found > at_four


@pytest.mark.parametrize("seeds", [2, 5])
def test_two_records_of_the_same_system_are_told_apart_in_five_percent(seeds, monkeypatch):
    """The same with items, a bootstrap and the public function, with seed noise of four item errors."""
    monkeypatch.setattr(comparison, "RESAMPLES", 100)
    rng, items, runs = np.random.default_rng(seeds), 50, 500
    verdicts, smallest = [], []
    for _ in range(runs):
        before = Outcomes(rng.normal(size=(1, items)), trained=False)
        offsets_S1 = 4 / items**0.5 * rng.normal(size=(seeds, 1))
        found = compare(before, Outcomes(before.values + rng.normal(size=(1, items)) + offsets_S1))
        verdicts.append(found.verdict != "no difference at this size")
        smallest.append(found.p <= 0.01)
        assert (found.p < 0.05) == verdicts[-1], "p and the interval say the same"
    assert 0.02 < np.mean(verdicts) < 0.07
    assert np.mean(smallest) < 0.025


def test_an_interval_is_students_where_seeds_alone_differ():
    rng = np.random.default_rng(2)
    items_1N, offsets_S1 = rng.normal(size=(1, 30)), rng.normal(size=(4, 1))
    found = compare(Outcomes(items_1N, trained=False), Outcomes(items_1N + offsets_S1))
    theirs = stats.ttest_1samp(100 * offsets_S1[:, 0], 0)
    interval = theirs.confidence_interval()
    assert (found.low, found.high, found.p) == pytest.approx((interval.low, interval.high, theirs.pvalue))
    values = [70.1, 71.4, 69.8]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert half_width_of_mean(values) == pytest.approx((high - low) / 2)


def test_holm_corrects_as_published():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1, 1]
    assert holm([]) == []


def test_the_average_of_tasks_draws_items_within_each():
    rng = np.random.default_rng(13)
    tasks = [of_items(rng, gain=0.04, items=90), of_items(rng, gain=0.0, items=400)]
    found = compare_average(tasks)
    single = [compare(*task) for task in tasks]
    assert found.difference == pytest.approx(np.mean([one.difference for one in single]))
    variance = sum(((one.high - one.low) / 2) ** 2 for one in single) / 4
    assert (found.high - found.low) / 2 == pytest.approx(variance**0.5, rel=0.1)
    assert found.items == 490
