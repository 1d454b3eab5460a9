"""SentEval's classifier, one at a time, with torch's own layer, loss and optimiser: the reference for the batch."""

from __future__ import annotations

import copy

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import nn


def train_one(features, label, train, dev, l2, how):
    """Train one classifier; ``dev`` None holds out 5 % of ``train``. Returns layer and validation accuracy."""
    rng = np.random.RandomState(how.seed)
    torch.manual_seed(how.seed)
    layer = nn.Linear(features.shape[1], int(label.max()) + 1)
    if how.optimizer == "adam":
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, weight_decay=l2)
    else:
        optimizer = torch.optim.RMSprop(layer.parameters(), weight_decay=l2)
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
