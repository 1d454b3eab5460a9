"""Many classifiers trained at once equal those trained one at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from cse.evaluation.linear import FULL, Problem, fit
from tests.evaluation.sequential import accuracy, train_one

SMALL = dataclasses.replace(FULL, batch_size=16, epoch_size=2, tenacity=2, folds=4, max_epoch=30)
SETTINGS = {
    "adam": SMALL,
    "rmsprop": dataclasses.replace(SMALL, optimizer="rmsprop"),
    "stopped by passes": dataclasses.replace(SMALL, max_epoch=3, tenacity=50),
}


@pytest.fixture(scope="module")
def rows():
    """Three classes that overlap, ``(150, 6)``."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 150)
    return (rng.normal(size=(150, 6)) + 0.8 * np.eye(3, 6)[label]).astype(np.float32), label


@pytest.mark.parametrize("name", SETTINGS)
def test_a_stack_equals_one_at_a_time(rows, name):
    """Problems of several sizes: full and ragged last batches, other numbers of steps a pass, held-out rows."""
    features, label = rows
    how = SETTINGS[name]
    everything = np.random.default_rng(1).permutation(150)
    problems = [
        Problem(everything[:100], everything[100:], how.l2),
        Problem(everything[30:126], everything[:30], how.l2),
        Problem(everything[:97], everything[97:120], how.l2),
        Problem(everything[:64], everything[64:], how.l2),
        Problem(everything[20:140], None, how.l2),
    ]
    ended = []
    found = fit(features, label, problems, how, advance=ended.append)
    assert sum(ended) == len(problems)
    for problem, fitted in zip(problems, found, strict=True):
        for r, l2 in enumerate(how.l2):
            layer, best = train_one(features, label, problem.train, problem.dev, l2, how)
            assert fitted.dev_accuracy[r] == pytest.approx(best, abs=1e-12)
            torch.testing.assert_close(fitted.weight[r], layer.weight.detach(), atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(fitted.bias[r], layer.bias.detach(), atol=2e-5, rtol=1e-4)
            shares = fitted.accuracy(torch.from_numpy(features), torch.from_numpy(label))
            assert shares[r] == pytest.approx(accuracy(layer, features, label), abs=1e-12)


def test_the_callers_random_state_is_left_alone(rows):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    fit(*rows, [Problem(np.arange(100), None, (1e-4,))], SMALL)
    assert torch.rand(1) == expected
