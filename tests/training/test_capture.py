"""Which trainings run as a captured graph on a GPU."""

from __future__ import annotations

import pytest
import torch

from cse.losses.group import ALONE
from cse.training.capture import why_not
from tests.parts import Cut, new_plan
from tests.training.systems import SYSTEMS, make_system

GPU = torch.device("cuda")
CAPTURED = {"promcse", "hinge"}


def why(encoder, losses, device=GPU, **changes) -> str:
    plan = new_plan(**changes)
    return why_not(encoder, losses, plan.train, plan.augment, device, ALONE)


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_that_are_captured(folder, name):
    encoder, losses, _ = make_system(name, folder, dropout=0.1)
    reason = why(encoder, losses)
    assert (reason == "") == (name in CAPTURED), reason


@pytest.mark.parametrize(
    ("changes", "device", "reason"),
    [
        ({}, "cpu", "train.device"),
        ({"cut": Cut(None, 4)}, "cuda", "train.mini_batch_size"),
        ({"optimizer": "rmsprop"}, "cuda", "train.optimizer"),
    ],
)
def test_the_reason_is_a_setting(folder, changes, device, reason):
    encoder, losses, _ = make_system("promcse", folder, dropout=0.1)
    assert why(encoder, losses, torch.device(device), **changes) == reason
