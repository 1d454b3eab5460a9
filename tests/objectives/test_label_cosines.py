"""The squared error of cosines against numpy."""

from itertools import combinations

import numpy as np
import pytest
import torch

from cse.objectives.label_cosines import label_cosines
from cse.objectives.label_proxies import UNLABELLED

Z = np.random.default_rng(0).normal(size=(9, 5))
LABELS = np.array([0, 1, 0, UNLABELLED, 2, 1, 0, UNLABELLED, 1])  # the 2 is alone


def test_pairs_within_a_label_and_between_two_weigh_alike():
    unit = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    errors = {True: [], False: []}
    for one, other in combinations(range(len(Z)), 2):
        if UNLABELLED not in (LABELS[one], LABELS[other]):
            alike = bool(LABELS[one] == LABELS[other])
            errors[alike].append((unit[one] @ unit[other] - alike) ** 2)
    assert (len(errors[True]), len(errors[False])) == (6, 15)
    found = label_cosines(torch.from_numpy(Z), torch.from_numpy(LABELS))
    assert found.item() == pytest.approx((np.mean(errors[True]) + np.mean(errors[False])) / 2, rel=1e-12)


@pytest.mark.parametrize(("labels", "cosine"), [([0, 0], 1.0), ([0, 1], 0.0)])
def test_it_is_least_where_cosines_say_which_labels_are_alike(labels, cosine):
    z = torch.tensor([[2.0, 0.0], [cosine, 1.0 - cosine]])
    assert label_cosines(z, torch.tensor(labels)).item() == 0.0
    assert label_cosines(z, torch.tensor([0, 1 - labels[1]])).item() == 0.5, "the other way round"


def test_without_labels_the_loss_is_zero_and_has_a_gradient():
    z = torch.from_numpy(Z).requires_grad_()
    loss = label_cosines(z, torch.full((9,), UNLABELLED))
    loss.backward()
    assert loss.item() == 0.0 and not z.grad.any()


def test_the_gradient_is_the_numeric_one():
    z, labels = torch.from_numpy(Z).requires_grad_(), torch.from_numpy(LABELS)
    assert torch.autograd.gradcheck(lambda z: label_cosines(z, labels), (z,))
