"""The softmax over a vector per label against numpy."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from cse.losses.label_proxies import label_proxies
from cse.losses.shared import UNLABELLED

RNG = np.random.default_rng(0)
Z, PROXIES = RNG.normal(size=(7, 5)), RNG.normal(size=(3, 5))
LABELS = np.array([0, 2, UNLABELLED, 1, 1, UNLABELLED, 0])


def found(z, proxies, labels, temperature=0.1):
    tensors = (torch.from_numpy(np.asarray(value)) for value in (z, proxies, labels))
    return label_proxies(*tensors, temperature=temperature).item()


def test_the_loss_is_that_of_each_labelled_row():
    rows = np.flatnonzero(LABELS != UNLABELLED)
    unit = [values / np.linalg.norm(values, axis=1, keepdims=True) for values in (Z, PROXIES)]
    expected = [-log_softmax(unit[0][row] @ unit[1].T / 0.1)[LABELS[row]] for row in rows]
    assert found(Z, PROXIES, LABELS) == pytest.approx(np.mean(expected), rel=1e-12)


def test_without_a_label_the_loss_is_zero_and_has_a_gradient():
    z = torch.from_numpy(Z).requires_grad_()
    loss = label_proxies(z, torch.from_numpy(PROXIES), torch.full((7,), UNLABELLED), temperature=0.1)
    loss.backward()
    assert loss.item() == 0.0 and not z.grad.any()
