"""Transfer tasks under SentEval's protocol: a linear classifier on frozen embeddings, accuracy in percent.

The protocol depends on the splits of a task:

* rows only (MR, CR, SUBJ, MPQA): nested cross-validation. Outer folds are scored; inner folds choose the L2 value, and
  their test fold also determines early stopping;
* train and test (TREC, MRPC): cross-validation on the training rows chooses the L2 value;
* train, dev and test (SST-2): dev chooses the L2 value and determines early stopping.

Rows of a pair task are ``[|u - v|, u * v]``. Accuracies are rounded to two decimals where SentEval rounds them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from cse.data.tasks.kinds import TRANSFER_TASKS, Labelled, TransferTask
from cse.errors import CseError
from cse.evaluation.linear import FULL, Classifier, Fitted, Problem, fit
from cse.evaluation.measures import Averaged, Score, Vectors


def score_transfer(
    vectors: Vectors,
    tasks: Sequence[TransferTask],
    how: Classifier = FULL,
    *,
    device: torch.device | None = None,
    progress: bool = False,
) -> Averaged:
    """Train and score classifiers on given embeddings.

    ``accuracy`` is in percent on the test rows, or the mean over outer folds; ``dev`` the accuracy that chose the L2
    value; ``l2`` the chosen value of each scored classifier; ``f1`` that of class 1 in percent, where there are two.
    """
    if not tasks:
        raise CseError("evaluation: no transfer tasks; give SentEval's downstream folder")
    scores = {}
    for task in tasks:
        parts = [_features(vectors, part) for part in task.parts]
        score = _PROTOCOLS[len(parts)]
        _check_folds(task, how)
        total = {1: how.folds * how.folds + how.folds, 2: how.folds + 1, 3: 1}[len(parts)]

        with tqdm(total=total, desc=task.name, unit="fold", disable=not progress) as bar:

            def train(rows: _Rows, problems: list[Problem]) -> list[Fitted]:
                step = bar.update
                return fit(rows.features, rows.label, problems, how, device=device, advance=step)

            rows = [_Rows(x, part.label) for x, part in zip(parts, task.parts, strict=True)]
            scores[task.name] = score(rows, how, train)
    return Averaged(scores, TRANSFER_TASKS, setting=how.describe())


@dataclass(frozen=True)
class _Rows:
    features: np.ndarray  # (N, D)
    label: np.ndarray  # (N,)

    def score(self, fitted: Fitted, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return accuracies in percent, two decimals, ``(R,)``, and the predicted classes ``(R, n)``."""
        features, label = (self.features, self.label) if rows is None else (self.features[rows], self.label[rows])
        predicted = fitted.predict(torch.as_tensor(features, dtype=torch.float32, device=fitted.weight.device))
        found = predicted.cpu().numpy()
        return (found == label).mean(axis=1).round(4) * 100, found


_Train = Callable[[_Rows, list[Problem]], list[Fitted]]


def _nested(parts: list[_Rows], how: Classifier, train: _Train) -> Score:
    (rows,) = parts
    problems, outer = [], _folds(rows.label, how)
    for learn, _ in outer:
        problems += [Problem(learn[inner], learn[stop], how.l2) for inner, stop in _folds(rows.label[learn], how)]
    found = train(rows, problems)
    chosen, dev = [], []
    for number in range(len(outer)):
        best, score = _choose(found[number * how.folds : (number + 1) * how.folds], how)
        chosen.append(best)
        dev.append(score)
    refits = train(rows, [Problem(learn, None, (l2,)) for (learn, _), l2 in zip(outer, chosen, strict=True)])
    scores = [rows.score(fitted, test)[0][0] for fitted, (_, test) in zip(refits, outer, strict=True)]
    return _score(_round(np.mean(scores)), _round(np.mean(dev)), chosen)


def _cross_validated(parts: list[_Rows], how: Classifier, train: _Train) -> Score:
    rows, test = parts
    found = train(rows, [Problem(learn, stop, how.l2) for learn, stop in _folds(rows.label, how)])
    best, dev = _choose(found, how)
    (fitted,) = train(rows, [Problem(np.arange(len(rows.label)), None, (best,))])
    accuracy, predicted = test.score(fitted)
    return _score(_round(accuracy[0]), dev, [best], _f1(test.label, predicted[0]))


def _split(parts: list[_Rows], how: Classifier, train: _Train) -> Score:
    learn, dev, test = parts
    together = _Rows(np.concatenate([learn.features, dev.features]), np.concatenate([learn.label, dev.label]))
    problem = Problem(np.arange(len(learn.label)), np.arange(len(learn.label), len(together.label)), how.l2)
    (fitted,) = train(together, [problem])
    best, score = _choose([fitted], how)
    accuracy, _ = test.score(fitted)
    return _score(_round(accuracy[how.l2.index(best)]), score, [best])


def _score(accuracy: float, dev: float, l2: list[float], f1: float | None = None) -> Score:
    facts = {"l2": l2} | ({} if f1 is None else {"f1": f1})
    return Score({"accuracy": accuracy, "dev": dev}, facts=facts)


_PROTOCOLS = {1: _nested, 2: _cross_validated, 3: _split}


def _choose(fitted: list[Fitted], how: Classifier) -> tuple[float, float]:
    """Return the first of the best L2 values and its accuracy in percent, by the mean over folds to two decimals."""
    means = [_round(100 * np.mean([one.dev_accuracy[r] for one in fitted])) for r in range(len(how.l2))]
    best = int(np.argmax(means))
    return how.l2[best], means[best]


def _folds(label: np.ndarray, how: Classifier) -> list[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(n_splits=how.folds, shuffle=True, random_state=how.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes smaller than the number of folds were checked before
        return list(folds.split(np.zeros(len(label)), label))


def _check_folds(task: TransferTask, how: Classifier) -> None:
    if len(task.parts) == 3:
        return
    counts = np.bincount(task.train.label)
    if counts.max() < how.folds:
        raise CseError(f"{task.name}: no class has {how.folds} rows, one for each fold; add rows")


def _features(vectors: Vectors, part: Labelled) -> np.ndarray:
    first = vectors.of(part.texts)
    if part.second is None:
        return first
    second = vectors.of(part.second)
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def _f1(label: np.ndarray, predicted: np.ndarray) -> float | None:
    from sklearn.metrics import f1_score

    return _round(100 * f1_score(label, predicted)) if label.max() == 1 else None


def _round(value: Any) -> float:
    return round(float(value), 2)
