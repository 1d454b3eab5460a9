"""Fit the classifier of labelled texts: a logistic regression on unit vectors, with calibrated probabilities.

The name of a label, in words, is one more row of it: with one row a label that is worth sixteen points of accuracy on
banking77, with twenty nothing. Names that tell the known rows no better than chance (``label_7``) are left out.
Probabilities are calibrated on rows that were held out or, where none were, on each row as a fit of the others tells
it. Then all rows together make the classifier that is kept. Where the vectors' model was trained on all of them, what
an earlier model's classifier showed on held-out rows calibrates it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cse.data.shape import name_in_words
from cse.evaluation.labels import class_means
from cse.evaluation.measures import TextEncoder
from cse.runtime.classifier import Classifier, ClassifierFacts

_REGRESSION = {"C": 10.0, "max_iter": 1000}  # of unit vectors; cross-validation of C was no better on eight sets
FALSE_ALARMS = 0.05  # share of texts with a label that the threshold calls unknown
_ENOUGH = 30  # rows of a label, in the median, to which its name has nothing to add
_BY_CHANCE = 0.05  # names are rows if chance would tell as many rows this rarely
_MOST = 20_000  # rows of a regression
FOLDS = 5  # over which a label's rows are spread
_BINS, _ROWS_OF_A_BIN = 15, 20
_LOG_TEMPERATURES = (-7.0, 3.0)
_UNCALIBRATED = 0.05  # temperature of cosines where no row says a better one
_LEAST = 1e-12  # probability
_UNHEARD = -1e4  # logit of a label that no row made known


Named = Sequence[tuple[str, str]]  # texts that name labels, and the labels


def names_of(labels: Sequence[str], named: Named = ()) -> tuple[list[str], list[str]]:
    """Return texts that name labels, and their labels: those that are given, and for the others the label in words."""
    left = sorted({*labels} - {label for _, label in named})
    return [text for text, _ in named] + [name_in_words(label) for label in left], [label for _, label in named] + left


@dataclass(frozen=True, eq=False)
class Rows:
    """Labelled rows: unit vectors ``(n, d)`` and ``n`` labels."""

    vector: NDArray[np.float32]
    label: list[str]


def rows_of(encoder: TextEncoder, texts: Sequence[str], labels: Sequence[str]) -> Rows:
    """Return labelled texts in the vectors of an encoder."""
    return Rows(np.asarray(encoder.encode([*texts], normalize=True)), [*labels])


class _Rows(NamedTuple):
    """Rows with labels as places in the order of all labels, -1 where a label is none of them."""

    vector: NDArray[np.float32]
    label: NDArray[np.int64]

    def __add__(self, other: _Rows) -> _Rows:  # type: ignore[override]
        return _Rows(np.concatenate([self.vector, other.vector]), np.concatenate([self.label, other.label]))

    def at(self, chosen: NDArray[np.bool_]) -> _Rows:
        return _Rows(self.vector[chosen], self.label[chosen])


class _Linear(NamedTuple):
    """Weight ``(c, d)`` and bias ``(c,)``."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    @property
    def scale(self) -> float:
        return float(np.linalg.norm(self.weight))

    def logits(self, vector_ND: NDArray[np.float32]) -> NDArray[np.float64]:
        return vector_ND.astype(np.float64) @ self.weight.T + self.bias


def fit_classifier(
    known: Rows,
    names: Rows,
    held: Rows | None = None,
    measured: Rows | None = None,
    *,
    like: ClassifierFacts | None = None,
) -> Classifier:
    """Fit a classifier.

    Args:
        known: rows with labels; may be none where there are ``names``: a classifier by names alone.
        names: one row or more for each label, of its name; may be none.
        held: rows apart, on which nothing was trained; their labels are among the others'.
        measured: more rows apart, which calibrate nothing and are learnt in the end.
        like: what held-out rows said of such a classifier, where the vectors' model was trained on all rows since.
    """
    labels, none = sorted({*known.label, *names.label}), Rows(known.vector[:0], [])
    rows, named, apart, more = (_numbered(each, labels) for each in (known, names, held or none, measured or none))
    named = _telling(named, rows + apart)
    last = _fit(rows + apart + more + named, len(labels))
    facts = ClassifierFacts(labels, names=len(named.label) > 0)
    if like is not None and like.rows:
        facts = replace(like, labels=facts.labels, names=facts.names)
        return _classifier(facts, last, facts.temperature * last.scale)
    if len(apart.label):
        first = _fit(rows + named, len(labels))
        own, logit_NC, scale = apart.label, first.logits(apart.vector), first.scale
    else:
        told, logit_NC, scale = _told_by_others(rows, named, len(labels))
        own, logit_NC = rows.label[told], logit_NC[told]
    if not len(own):
        return _classifier(facts, last, _UNCALIBRATED)
    facts = _judged(logit_NC, own, scale, facts)
    return _classifier(facts, last, facts.temperature * last.scale)  # more rows make larger weights


def label_logits(known: Rows, names: Rows, vector_ND: NDArray[np.float32]) -> tuple[list[str], NDArray[np.float64]]:
    """Return the labels, in order, and the logits ``(n, c)`` of vectors by a classifier of rows and names."""
    labels = sorted({*known.label, *names.label})
    rows, named = _numbered(known, labels), _numbered(names, labels)
    return labels, _fit(rows + _telling(named, rows), len(labels)).logits(vector_ND)


def told_right(known: Rows, names: Rows) -> NDArray[np.bool_]:
    """Return whether a classifier of the other rows, and of the names, tells each row its own label."""
    labels = sorted({*known.label, *names.label})
    rows, named = _numbered(known, labels), _numbered(names, labels)
    can, logit_NC, _ = _told_by_others(rows, _telling(named, rows), len(labels))
    return can & (logit_NC.argmax(axis=1) == rows.label)


def _numbered(rows: Rows, labels: list[str]) -> _Rows:
    place = {label: number for number, label in enumerate(labels)}
    vectors = np.asarray(rows.vector, np.float32)
    return _Rows(vectors, np.array([place.get(label, -1) for label in rows.label], np.int64))


def _classifier(facts: ClassifierFacts, linear: _Linear, at: float) -> Classifier:
    return Classifier(facts, (linear.weight / at).astype(np.float32), (linear.bias / at).astype(np.float32))


def _telling(named: _Rows, rows: _Rows) -> _Rows:
    """Return the names if they tell rows better than chance, and rows are few enough to need them; else none."""
    from scipy.stats import binom

    if not len(rows.label) or not len(named.label):
        return named
    right = (named.label[(rows.vector @ named.vector.T).argmax(axis=1)] == rows.label).sum()
    enough = np.median(np.unique(rows.label, return_counts=True)[1]) >= _ENOUGH
    by_chance = binom.sf(right - 1, len(rows.label), 1 / len(np.unique(named.label)))
    return named.at(named.label < 0) if enough or by_chance >= _BY_CHANCE else named


def _fit(rows: _Rows, labels: int) -> _Linear:
    """Return a regression; where every label has one row at most, these are the weights themselves."""
    from sklearn.linear_model import LogisticRegression

    weight, bias = np.zeros((labels, rows.vector.shape[1])), np.full(labels, _UNHEARD)
    rows = rows.at(rows.label >= 0)
    if len(rows.label) > _MOST:
        rows = rows.at(np.isin(np.arange(len(rows.label)), np.linspace(0, len(rows.label) - 1, _MOST).astype(int)))
    there, counts = np.unique(rows.label, return_counts=True)
    if len(there) < 2 or counts.max() == 1:
        if len(there):
            weight[there], bias[there] = class_means(rows.vector, rows.label)[1], 0.0
        return _Linear(weight, bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that labels are many for so few rows
        found = LogisticRegression(**_REGRESSION).fit(rows.vector.astype(np.float64), rows.label)
    coefficients, intercept = found.coef_, found.intercept_
    if len(there) == 2:  # one row of weights stands for both
        coefficients, intercept = np.stack([-coefficients[0], coefficients[0]]) / 2, np.array([-1, 1]) * intercept / 2
    weight[there], bias[there] = coefficients, intercept
    return _Linear(weight, bias)


def _told_by_others(rows: _Rows, named: _Rows, labels: int) -> tuple[NDArray[np.bool_], NDArray[np.float64], float]:
    """Return the logits of each row by a fit of those in other folds, over which a label's rows are spread.

    Before them, whether another row of its label, or a name, can tell it; behind them the mean scale of these fits.
    """
    can = np.isin(rows.label, named.label) | (np.bincount(rows.label, minlength=labels)[rows.label] > 1)
    if not can.any():
        return can, np.empty((len(can), labels)), 1.0
    order = np.lexsort((np.random.default_rng(0).permutation(len(rows.label)), rows.label))
    first = np.searchsorted(rows.label[order], rows.label[order])  # of the label's rows
    fold = np.empty(len(order), np.int64)
    fold[order] = (np.arange(len(order)) - first) % FOLDS  # so each fit lacks a like share of every label
    found, scales = np.empty((len(order), labels)), []
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        linear = _fit(rows.at(~inside) + named, labels)
        found[inside] = linear.logits(rows.vector[inside])
        scales.append(linear.scale)
    return can, found, float(np.mean(scales))


def temperature(logit_NC: NDArray[np.float64], own: NDArray[np.int64]) -> float:
    """Return the temperature (Guo et al. 2017) under which the likeliest label is as often right as its chance says.

    Platt's targets (1999, section 2.2), a little off 1 and 0, keep it finite where every row or none is right.
    """
    from scipy.special import softmax

    if not len(own):
        return 1.0
    right = logit_NC.argmax(axis=1) == own
    target = np.where(right, (right.sum() + 1) / (right.sum() + 2), 1 / ((~right).sum() + 2))

    def surprise(log_temperature: float) -> float:
        chance = softmax(logit_NC / np.exp(log_temperature), axis=1).max(axis=1).clip(_LEAST, 1 - _LEAST)
        return -float((target * np.log(chance) + (1 - target) * np.log1p(-chance)).mean())

    return _least(surprise)[0]


def own_probability(logit_NC: NDArray[np.float64], own: NDArray[np.int64]) -> float:
    """Return the geometric mean of the probabilities of the rows' own labels, from 0 to 1.

    At the temperature that makes these labels likeliest, so vectors that spread more, as behind a head, gain nothing by
    it. It moves with every row where accuracy moves with a few: it chooses better by few rows. Rows whose label is none
    of these (-1) are left out; 0 if there are no others.
    """
    from scipy.special import log_softmax

    logit_NC, own = logit_NC[own >= 0], own[own >= 0]
    if not len(own):
        return 0.0
    place = np.arange(len(own)), own

    def surprise(log_temperature: float) -> float:
        return -float(log_softmax(logit_NC / np.exp(log_temperature), axis=1)[place].mean())

    return float(np.exp(-_least(surprise)[1]))


def _least(surprise: Callable[[float], float]) -> tuple[float, float]:
    """Return the temperature at which a function of its logarithm is least, and the value there."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(surprise, bounds=_LOG_TEMPERATURES, method="bounded")
    return float(np.exp(found.x)), float(found.fun)


def calibration_error(chance_N: NDArray[np.floating[Any]], right_N: NDArray[np.bool_]) -> float:
    """Return the expected calibration error (Naeini et al. 2015) of the likeliest labels, from 0 to 1.

    In 15 bins; of under 300 rows in fewer, for chance alone makes gaps in bins of a few rows.
    """
    bins = min(max(len(right_N) // _ROWS_OF_A_BIN, 1), _BINS)
    place = np.minimum((chance_N * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, right_N, bins) - np.bincount(place, chance_N, bins)
    return float(np.abs(gaps).sum() / len(right_N))


def _judged(
    logit_NC: NDArray[np.float64], own: NDArray[np.int64], scale: float, of: ClassifierFacts
) -> ClassifierFacts:
    """Return what rows say that a classifier of this scale never saw; each half of them at the other's temperature."""
    from scipy.special import softmax

    chance, half = np.empty(len(own)), np.arange(len(own)) % 2 == 0
    for one, other in ((half, ~half), (~half, half)):
        chance[one] = softmax(logit_NC[one] / temperature(logit_NC[other], own[other]), axis=1).max(axis=1)
    right = logit_NC.argmax(axis=1) == own
    return replace(
        of,
        rows=len(own),
        accuracy=float(right.mean()),
        calibration_error=calibration_error(chance, right),
        threshold=round(float(np.quantile(chance, FALSE_ALARMS)), 4),
        false_alarms=FALSE_ALARMS,
        temperature=temperature(logit_NC, own) / scale,
        unmeasured=len(of.labels) - len(np.unique(own[own >= 0])),
    )
