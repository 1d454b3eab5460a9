"""The supervised contrastive loss against numpy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from cse.losses.shared import UNLABELLED
from cse.losses.supervised_contrastive import supervised_contrastive

Z = np.random.default_rng(0).normal(size=(9, 5))
LABELS = np.array([0, 1, 0, UNLABELLED, 2, 1, 0, UNLABELLED, 1])  # the 2 is alone


def test_each_other_text_of_the_label_is_a_positive_and_all_other_texts_are_negatives():
    unit = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    losses = []
    for row, label in enumerate(LABELS):
        others = [other for other in range(len(Z)) if other != row]
        positives = [other for other in others if LABELS[other] == label != UNLABELLED]
        logits = unit @ unit[row] / 0.2
        if positives:
            losses.append(-np.mean([logits[p] - logsumexp(logits[others]) for p in positives]))
    assert len(losses) == 6
    found = supervised_contrastive(torch.from_numpy(Z), torch.from_numpy(LABELS), 0.2)
    assert found.item() == pytest.approx(np.mean(losses), rel=1e-12)
