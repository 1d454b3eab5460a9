"""Comparisons of two models: intervals and p values as scipy finds them, and how often chance is taken for a gain."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, precision_recall_curve

from cse.errors import CseError
from cse.evaluation.comparison import (
    Outcomes,
    average_precision,
    best_f1,
    compare,
    compare_average,
    rank_correlation,
)


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


def test_items_are_paired():
    before, after = of_items(np.random.default_rng(1), gain=0.03, spread=0.02)
    shuffled = Outcomes(np.random.default_rng(0).permuted(after.values, axis=1))
    paired, unpaired = compare(before, after), compare(before, shuffled)
    assert paired.verdict == "better"
    assert paired.p == pytest.approx(2 / 2001), "the smallest that 2,000 resamples can give"
    assert unpaired.high - unpaired.low > 4 * (paired.high - paired.low)


def test_better_worse_and_neither():
    before, after = of_items(np.random.default_rng(3), gain=0.05)
    assert compare(before, after).verdict == "better"
    assert compare(after, before).verdict == "worse"
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
        (rank_correlation, lambda c, g: stats.spearmanr(c, g).statistic, graded),
        (average_precision, lambda c, g: average_precision_score(g, c), classes),
        (best_f1, largest_f1, classes),
    ):
        expected = [[reference(seed[row], gold[row]) for seed in seeds] for row in rows]
        np.testing.assert_allclose(found(seeds, gold, counts), expected, atol=1e-12)


def largest_f1(cosine, classes):
    precision, recall, _ = precision_recall_curve(classes, cosine)
    return (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()


def test_pairs_are_resampled_with_their_gold_scores():
    rng = np.random.default_rng(7)
    gold = rng.uniform(0, 5, size=203)
    before = Outcomes((gold + 2.0 * rng.normal(size=203))[None], gold, "spearman")
    after = Outcomes((gold + 1.0 * rng.normal(size=203))[None], gold, "spearman")
    found = compare(before, after)
    assert found.before == pytest.approx(100 * stats.spearmanr(before.values[0], gold).statistic)
    theirs = stats.bootstrap(
        (before.values[0], after.values[0], gold),
        lambda b, a, g: 100 * (stats.spearmanr(a, g).statistic - stats.spearmanr(b, g).statistic),
        paired=True, vectorized=False, n_resamples=500, method="percentile", rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1.5)
    assert found.verdict == "better"


def test_a_resample_without_a_correlation_is_left_out():
    gold = np.array([0.0, 1.0])
    outcomes = Outcomes(np.array([[0.2, 0.4]]), gold, "spearman")
    found = compare(outcomes, outcomes)
    assert (found.before, found.difference, found.verdict) == (100, 0, "no difference at this size")


def test_seeds_widen_the_interval_as_far_as_they_differ():
    """What chance alone would be called a gain, with seeds that differ more than items do."""
    rng = np.random.default_rng(11)

    def called_different(seeds):
        before, _ = of_items(rng, items=150)
        offsets_S1 = 0.05 * rng.normal(size=(seeds, 1))
        after = Outcomes(before.values + offsets_S1 + 0.01 * rng.normal(size=(seeds, 150)))
        return compare(before, after).verdict != "no difference at this size"

    one, five = (np.mean([called_different(seeds) for _ in range(60)]) for seeds in (1, 5))
    assert one > 0.8, "one seed says nothing of the others, and the interval cannot know"
    assert five < 0.25


def test_the_average_of_tasks_draws_items_within_each():
    rng = np.random.default_rng(13)
    tasks = [of_items(rng, gain=0.04, items=90), of_items(rng, gain=0.0, items=400)]
    found = compare_average(tasks)
    single = [compare(*task) for task in tasks]
    assert found.difference == pytest.approx(np.mean([one.difference for one in single]))
    variance = sum(((one.high - one.low) / 2) ** 2 for one in single) / 4
    assert (found.high - found.low) / 2 == pytest.approx(variance**0.5, rel=0.1)
    assert found.items == 490


def test_models_measured_on_other_items_are_refused():
    before, after = of_items(np.random.default_rng(0))
    with pytest.raises(CseError, match="301 items, the other on 300 or on others"):
        compare(before, Outcomes(after.values[:, :300]))
    gold = np.arange(301.0)
    with pytest.raises(CseError, match="evaluate both on the same data"):
        compare(Outcomes(before.values, gold, "spearman"), Outcomes(after.values, gold[::-1], "spearman"))
