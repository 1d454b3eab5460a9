"""Measures of labelled texts against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score
from sklearn.neighbors import KNeighborsClassifier

from cse.evaluation import labels
from cse.evaluation.pairs import average_precision, best_f1, triplet_hits
from cse.evaluation.retrieval import cosine_blocks
from cse.runtime.encode import unit_rows


@pytest.fixture
def clouds():
    """Unit vectors of seven labels of unequal size: 131 reference and 57 test rows."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(7, 16))

    def draw(count):
        label = rng.choice(7, count, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05])
        return unit_rows((centres[label] + 1.6 * rng.normal(size=(count, 16))).astype(np.float32)), label

    (reference, reference_label), (test, test_label) = draw(131), draw(57)
    return test, test_label, reference, reference_label


def test_neighbours_are_those_of_scikit_learn_where_the_vote_has_a_winner(clouds):
    test, test_label, reference, reference_label = clouds
    other = KNeighborsClassifier(labels.NEIGHBOURS, metric="cosine", algorithm="brute").fit(reference, reference_label)
    votes = np.sort(other.predict_proba(test), axis=1)
    won = votes[:, -1] > votes[:, -2]
    assert 20 < won.sum() < len(test), "some votes are ties, which scikit-learn gives to the smaller label"
    expected = (other.predict(test) == test_label).astype(float)
    hits = (labels.neighbour_labels(test, reference, reference_label) == test_label).astype(float)
    np.testing.assert_array_equal(hits[won], expected[won])
    assert 0.3 < hits.mean() < 0.95


def on_circle(*degrees: float) -> np.ndarray:
    angle = np.radians(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def test_a_tied_vote_goes_to_the_label_of_the_nearest_row():
    reference = on_circle(2, -4, 6, -8, 10, 90)
    votes = np.array([5, 1, 1, 5, 3, 9])  # from 0 degrees: 5, 1, 1, 5, 3
    test = on_circle(0, -6)
    assert labels.neighbour_labels(test, reference, votes).tolist() == [5, 1]
    few = labels.neighbour_labels(on_circle(0), on_circle(10, 20, 30), np.array([2, 0, 0]))
    assert few.tolist() == [0], "fewer rows than neighbours all vote"


def test_same_label_precision_is_scikit_learns_average_precision(clouds, monkeypatch):
    test, label = clouds[:2]
    label[5] = 99  # alone
    starts = []

    def counted(*arrays):
        for start, block in cosine_blocks(*arrays[:2], cells=57 * 20):
            starts.append(start)
            yield start, block

    monkeypatch.setattr(labels, "cosine_blocks", counted)
    found = labels.same_label_precisions(test, label)
    assert starts == [0, 20, 40]
    cosine = test.astype(np.float64) @ test.T.astype(np.float64)
    others = [np.delete(np.arange(57), i) for i in range(57)]
    expected = [
        average_precision_score(label[rows] == label[i], cosine[i, rows])
        for i, rows in enumerate(others)
        if (label == label[i]).sum() > 1
    ]
    assert len(expected) == 56
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_nearest_class_mean_is_the_nearest_centroid_by_angle(clouds):
    test, test_label, reference, reference_label = clouds
    means = unit_rows(np.stack([reference[reference_label == label].mean(axis=0) for label in range(7)]))
    expected = KNeighborsClassifier(1, metric="cosine").fit(means, np.arange(7)).predict(test)
    assert labels.class_mean_labels(test, reference, reference_label).tolist() == expected.tolist()
    assert 0.5 < (expected == test_label).mean() < 1
    others = labels.class_mean_labels(test, reference, reference_label + 40)
    assert others.tolist() == (expected + 40).tolist(), "labels are any numbers"


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
