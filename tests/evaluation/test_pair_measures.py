"""Measures of pairs and triplets against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from cse.evaluation.pairs import average_precision, best_f1, triplet_hits


@pytest.mark.parametrize("digits", [9, 1], ids=["no ties", "many ties"])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_average_precision_and_f1_are_scikit_learns(digits, share):
    rng = np.random.default_rng(1)
    label = rng.random(101) < share
    cosine = np.clip(rng.normal(0.2 * label, 0.3), -1, 1).round(digits)
    assert average_precision(cosine, label) == pytest.approx(average_precision_score(label, cosine), abs=1e-12)
    found = best_f1(cosine, label)
    every = {threshold: f1_score(label, cosine >= threshold) for threshold in np.unique(cosine)}
    assert found.f1 == pytest.approx(max(every.values()), abs=1e-12)
    assert every[found.cosine] == pytest.approx(found.f1, abs=1e-12)


def test_a_tied_triplet_is_missed():
    assert triplet_hits(np.array([0.5, 0.5, 0.2]), np.array([0.4, 0.5, 0.3])).tolist() == [1, 0, 0]
