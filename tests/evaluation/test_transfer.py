"""SentEval's three protocols against a plain loop over classifiers, and against scikit-learn."""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from torch import nn

from cse.data.suite import make_labelled, read_transfer
from cse.data.tasks.kinds import Labelled, TransferTask, sentences_of
from cse.evaluation.linear import FULL, Problem, fit
from cse.evaluation.measures import Vectors
from cse.evaluation.transfer import score_transfer
from tests.evaluation.test_sts import FakeEncoder
from tests.parts import refusal

HOW = dataclasses.replace(FULL, batch_size=16, epoch_size=2, tenacity=2, folds=3, max_epoch=20)
SHARED = Path(__file__).parents[3] / "shared/data/senteval"


class Words(FakeEncoder):
    """Embeds a text ``class-number`` near the mean of its class."""

    means = np.random.default_rng(3).normal(size=(3, 8))

    def vector(self, text):
        noise = np.random.default_rng(list(text.encode())).normal(size=8)
        return (1.5 * noise + self.means[int(text[0])]).astype(np.float32)


def part(count, classes, start=0, pairs=False) -> Labelled:
    rng = np.random.default_rng(start)
    label = [int(i) for i in rng.integers(0, classes, count)]
    texts = [f"{c} number {start + i}" + " word" * int(rng.integers(0, 4)) for i, c in enumerate(label)]
    second = [f"{c if same else 2} other {start + i}" for i, (c, same) in enumerate(zip(label, label, strict=True))]
    return make_labelled(texts, label, second if pairs else None)


def score(task, how=HOW):
    vectors = Vectors(Words(), sentences_of([task]))
    return vectors, score_transfer(vectors, [task], how).tasks[task.name]


def test_nested_cross_validation():
    task = TransferTask("own", part(80, 2))
    vectors, found = score(task)
    x, y = vectors.of(task.train.texts), task.train.label
    runs = []
    for learn, test in folds(y, HOW):
        inner = folds(y[learn], HOW)
        l2, best = choose([[train_one(x, y, learn[a], learn[b], l2, HOW)[1] for l2 in HOW.l2] for a, b in inner], HOW)
        layer, _ = train_one(x, y, learn, None, l2, HOW)
        runs.append((l2, best, round(100 * accuracy(layer, x[test], y[test]), 2)))
    chosen, dev, accuracies = map(list, zip(*runs, strict=True))
    assert found.facts["l2"] == chosen and "f1" not in found.facts
    assert found.values["accuracy"] == pytest.approx(np.mean(accuracies), abs=0.006)
    assert found.values["dev"] == pytest.approx(np.mean(dev), abs=0.006)


@pytest.mark.parametrize(("classes", "pairs"), [(3, False), (2, True)])
def test_cross_validation_on_train(classes, pairs):
    task = TransferTask("own", part(90, classes, pairs=pairs), test=part(40, classes, start=500, pairs=pairs))
    vectors, found = score(task)

    def features(rows):
        u = vectors.of(rows.texts)
        if not pairs:
            return u
        v = vectors.of(rows.second)
        return np.concatenate([abs(u - v), u * v], axis=1)

    x, y = features(task.train), task.train.label
    l2, best = choose([[train_one(x, y, a, b, l2, HOW)[1] for l2 in HOW.l2] for a, b in folds(y, HOW)], HOW)
    layer, _ = train_one(x, y, np.arange(len(y)), None, l2, HOW)
    assert (found.facts["l2"], found.values["dev"]) == ([l2], best)
    test = features(task.test)
    assert found.values["accuracy"] == pytest.approx(100 * accuracy(layer, test, task.test.label), abs=0.006)
    if pairs:
        predicted = layer(torch.tensor(test)).argmax(dim=1).numpy()
        assert found.facts["f1"] == pytest.approx(100 * f1_score(task.test.label, predicted), abs=0.006)


def test_given_split():
    task = TransferTask("own", part(90, 2), part(40, 2, start=300), part(50, 2, start=600))
    vectors, found = score(task)
    x = np.concatenate([vectors.of(task.train.texts), vectors.of(task.dev.texts)])
    y = np.concatenate([task.train.label, task.dev.label])
    runs = [train_one(x, y, np.arange(90), np.arange(90, 130), l2, HOW) for l2 in HOW.l2]
    l2, best = choose([[best for _, best in runs]], HOW)
    assert (found.facts["l2"], found.values["dev"]) == ([l2], best)
    test = accuracy(runs[HOW.l2.index(l2)][0], vectors.of(task.test.texts), task.test.label)
    assert found.values["accuracy"] == pytest.approx(100 * test, abs=0.006)
    fitted, *_ = fit(x, y, [Problem(np.arange(90), np.arange(90, 130), HOW.l2)], HOW)
    for weight, (layer, _) in zip(fitted.weight, runs, strict=True):
        torch.testing.assert_close(weight, layer.weight.detach(), atol=2e-5, rtol=1e-4)


def test_too_few_rows_for_the_folds():
    said = refusal(score, TransferTask("own", part(8, 2)), FULL)
    assert "own: no class has 10 rows, one for each fold; add rows" in said


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared evaluation data are not here")
def test_real_tasks_agree_with_scikit_learn():
    """MiniLM on CR and TREC: within half a point of logistic regression tuned by scikit-learn."""
    from cse.model.sentence_encoder import SentenceEncoder

    tasks = [task for task in read_transfer(SHARED)[0] if task.name in ("CR", "TREC")]
    encoder = SentenceEncoder.load("sentence-transformers/all-MiniLM-L6-v2")
    vectors = Vectors(encoder, sentences_of(tasks), 128)
    found = score_transfer(vectors, tasks).tasks
    cr, trec = tasks
    x, y = vectors.of(cr.train.texts), cr.train.label
    cross = StratifiedKFold(10, shuffle=True, random_state=1111)
    chosen = GridSearchCV(LogisticRegression(max_iter=2000), {"C": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]}, cv=cross)
    expected = cross_val_score(chosen.fit(x, y).best_estimator_, x, y, cv=cross).mean()
    assert found["CR"].values["accuracy"] == pytest.approx(100 * expected, abs=0.5)
    chosen.set_params(cv=5).fit(vectors.of(trec.train.texts), trec.train.label)
    expected = chosen.score(vectors.of(trec.test.texts), trec.test.label)
    assert found["TREC"].values["accuracy"] == pytest.approx(100 * expected, abs=1.5)  # a deviation is 1.3 points


# ---- the reference: one classifier at a time, with torch's own layer, loss and optimiser ----------------------------


def train_one(features, label, train, dev, l2, how):
    """Train one classifier; ``dev`` None holds out 5 % of ``train``. Returns layer and validation accuracy."""
    rng = np.random.RandomState(how.seed)
    torch.manual_seed(how.seed)
    layer = nn.Linear(features.shape[1], int(label.max()) + 1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, weight_decay=l2)
    if dev is None:
        order = rng.permutation(len(train))
        held_out = int(0.05 * len(train))
        train, dev = train[order[held_out:]], train[order[:held_out]]
    x, y = torch.tensor(features[train], dtype=torch.float32), torch.tensor(label[train])
    best, kept, worse, passes = -1.0, None, 0, 0
    while passes <= how.max_epoch:
        for _ in range(how.epoch_size):
            order = rng.permutation(len(x))
            for start in range(0, len(x), how.batch_size):
                rows = order[start : start + how.batch_size]
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(x[rows]), y[rows]).backward()
                optimizer.step()
        passes += how.epoch_size
        found = accuracy(layer, features[dev], label[dev])
        if found > best:
            best, kept = found, copy.deepcopy(layer)
        else:
            if worse >= how.tenacity:
                break
            worse += 1
    return kept, best


def accuracy(layer, features, label) -> float:
    with torch.no_grad():
        return float((layer(torch.tensor(features, dtype=torch.float32)).argmax(dim=1).numpy() == label).mean())


def folds(label, how):
    return StratifiedKFold(how.folds, shuffle=True, random_state=how.seed).split(np.zeros(len(label)), label)


def choose(scores, how):
    """Return the first best L2 value of ``scores`` (folds, L2 values) and its accuracy in percent."""
    means = [round(100 * float(np.mean(column)), 2) for column in zip(*scores, strict=True)]
    return how.l2[int(np.argmax(means))], max(means)
