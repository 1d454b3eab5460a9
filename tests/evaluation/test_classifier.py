"""The classifier of labelled texts: against scikit-learn, with names that help and names that say nothing."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from cse.evaluation.classifier import (
    FALSE_ALARMS,
    Rows,
    fit_classifier,
    label_logits,
    own_probability,
    temperature,
    told_right,
)
from cse.runtime.encode import unit_rows

LABELS = ["card", "loan", "rate", "top up"]
RANDOM = np.random.default_rng(3)
CENTRES = unit_rows(RANDOM.normal(size=(len(LABELS), 12)))


def right_in(found, rows: Rows) -> float:
    """Return the share of rows that get their own label."""
    return np.mean([told.label == own for told, own in zip(found.classify(rows.vector), rows.label, strict=True)])


def surer_than_right(found, rows: Rows) -> float:
    return found.probabilities(rows.vector).max(axis=1).mean() - right_in(found, rows)


def drawn(count: int, seed: int, spread: float = 0.25) -> Rows:
    """Return rows around the centres, as many of each label as their order says, and more of the first."""
    random = np.random.default_rng(seed)
    label = np.concatenate([np.repeat(np.arange(len(LABELS)), count), np.zeros(count, np.int64)])
    vectors = unit_rows(CENTRES[label] + random.normal(scale=spread, size=(len(label), 12)))
    return Rows(vectors.astype(np.float32), [LABELS[number] for number in label])


NO_NAMES = Rows(np.empty((0, 12), np.float32), [])
NAMES = Rows(unit_rows(CENTRES + RANDOM.normal(scale=0.1, size=CENTRES.shape)).astype(np.float32), LABELS)


def test_it_is_a_logistic_regression_on_rows_names_and_held_out_rows_at_their_temperature():
    known, held, test = drawn(6, 1, 0.5), drawn(4, 2, 0.5), drawn(50, 3, 0.5)
    found = fit_classifier(known, NAMES, held)
    first = LogisticRegression(C=10.0, max_iter=2000, tol=1e-6)
    first.fit(np.concatenate([known.vector, NAMES.vector]), known.label + NAMES.label)
    at = temperature(first.decision_function(held.vector), np.searchsorted(LABELS, held.label))
    every = np.concatenate([known.vector, held.vector, NAMES.vector])
    last = LogisticRegression(C=10.0, max_iter=2000, tol=1e-6).fit(every, known.label + held.label + NAMES.label)
    at *= np.linalg.norm(last.coef_) / np.linalg.norm(first.coef_)
    expected = softmax(last.decision_function(test.vector) / at, axis=1)
    np.testing.assert_allclose(found.probabilities(test.vector), expected, atol=0.005)
    assert found.facts.accuracy == first.score(held.vector, held.label)
    assert (found.facts.rows, found.facts.names, found.facts.labels) == (20, True, LABELS)
    some = [place for place, label in enumerate(held.label) if label != LABELS[1]]
    facts = fit_classifier(known, NAMES, Rows(held.vector[some], [held.label[place] for place in some])).facts
    assert (found.facts.unmeasured, facts.unmeasured) == (0, 1)
    assert str(facts).endswith("as 5 % of these rows are; of 1 label no such row says anything")


def test_rows_that_measured_are_learnt_and_calibrate_nothing():
    known, held, more, test = drawn(3, 1, 0.5), drawn(4, 2, 0.5), drawn(30, 4, 0.5), drawn(50, 3, 0.5)
    before, after = fit_classifier(known, NO_NAMES, held), fit_classifier(known, NO_NAMES, held, more)
    assert before.facts == after.facts
    assert right_in(after, test) > right_in(before, test) + 0.02


def test_each_row_is_told_by_the_others_and_one_that_none_can_tell_is_wrong():
    known = drawn(6, 1, 0.5)
    facts = fit_classifier(known, NAMES).facts
    right = told_right(known, NAMES)
    assert (len(right), right.mean()) == (facts.rows, facts.accuracy)
    alone = Rows(np.concatenate([known.vector, CENTRES[:1]]).astype(np.float32), [*known.label, "alone"])
    assert not told_right(alone, NO_NAMES)[-1] and told_right(alone, NO_NAMES).any()


def test_the_own_probability_is_that_of_the_temperature_that_fits_best():
    """Of the classifier before it knows what is held out."""
    known, test = drawn(6, 1, 0.5), drawn(50, 3, 0.5)
    labels, logits = label_logits(known, NAMES, test.vector)
    told = fit_classifier(known, NAMES).classify(test.vector)
    assert [labels[best] for best in logits.argmax(axis=1)] == [one.label for one in told]
    own = np.searchsorted(labels, test.label)
    tried = [softmax(logits / at, axis=1)[np.arange(len(own)), own] for at in np.geomspace(0.01, 10, 3000)]
    expected = max(np.exp(np.log(each).mean()) for each in tried)
    assert own_probability(logits, own) == pytest.approx(expected, abs=1e-5)
    assert own_probability(7 * logits, own) == pytest.approx(expected, abs=1e-5), "to spread more gains nothing"
    none = np.full(len(own), -1)
    twice = own_probability(np.concatenate([logits, logits]), np.concatenate([own, none]))
    assert twice == pytest.approx(expected, abs=1e-5), "a label without rows is left out"
    assert own_probability(logits, none) == 0


def test_rows_that_their_model_was_trained_on_do_not_calibrate_it():
    """A model pulls the rows that it was trained on together: by them it would be surer than it is right."""
    test, held = drawn(400, 9, 0.6), drawn(15, 2, 0.6)
    before = fit_classifier(drawn(10, 1, 0.2), NO_NAMES, held).facts
    trained, again = drawn(10, 1, 0.2), drawn(15, 2, 0.2)
    known = Rows(np.concatenate([trained.vector, again.vector]), trained.label + again.label)
    found, own = fit_classifier(known, NO_NAMES, like=before), fit_classifier(known, NO_NAMES)
    assert (found.facts.rows, found.facts.accuracy, found.facts.threshold) == (75, before.accuracy, before.threshold)
    assert abs(surer_than_right(found, test)) < 0.07 and surer_than_right(own, test) > 0.1


def test_two_labels_are_a_regression_too_and_a_held_out_label_that_no_row_has_counts_as_wrong():
    known, test = (Rows(each.vector[:n], each.label[:n]) for n, each in ((16, drawn(8, 1)), (100, drawn(50, 3))))
    expected = LogisticRegression(C=10.0).fit(known.vector, known.label).predict(test.vector)
    assert right_in(fit_classifier(known, NO_NAMES), Rows(test.vector, [*expected])) > 0.98
    held = drawn(4, 2)
    found = fit_classifier(drawn(6, 1), NO_NAMES, Rows(held.vector, ["refund", *held.label[1:]]))
    assert found.facts.accuracy <= 19 / 20 and "refund" not in found.facts.labels


def test_names_alone_or_one_row_a_label_tell_but_are_not_calibrated():
    rows, test = drawn(1, 1), drawn(50, 3)
    for known, names, least in ((NO_NAMES, NAMES, 0.8), (Rows(rows.vector[:4], rows.label[:4]), NO_NAMES, 0.6)):
        found = fit_classifier(known, names)
        assert right_in(found, test) > least and "not calibrated" in str(found.facts)


def test_few_rows_gain_by_names_and_names_that_say_nothing_are_left_out():
    moved = Rows(NAMES.vector[[1, 2, 3, 0]], LABELS)
    test, right = drawn(100, 9, 0.35), {}
    for name, names in {"without": NO_NAMES, "names": NAMES, "moved": moved}.items():
        right[name] = np.mean([right_in(fit_classifier(drawn(1, seed, 0.35), names), test) for seed in range(8)])
    assert right["names"] > right["without"] + 0.05
    assert right["moved"] > right["without"] - 0.03
    assert fit_classifier(drawn(3, 1), NAMES).facts.names
    assert not fit_classifier(drawn(3, 1), moved).facts.names
    assert not fit_classifier(drawn(40, 1), NAMES).facts.names, "enough rows need none"


@pytest.mark.parametrize("held", [drawn(15, 2, 0.4), None])
def test_probabilities_are_as_often_right_as_they_say(held):
    test, found = drawn(1000, 5, 0.4), fit_classifier(drawn(40, 1, 0.4), NAMES, held)
    assert abs(surer_than_right(found, test)) < 0.06
    assert abs(np.mean([not told.known for told in found.classify(test.vector)]) - FALSE_ALARMS) < 0.04
