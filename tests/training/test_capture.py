"""Which trainings run as a captured graph on a GPU, and how many operators such a step has: the graph's kernels."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cse.losses.group import ALONE
from cse.model.encoder import Encoder
from cse.model.passes import on_device
from cse.training.capture import why_not
from tests.gpu.base import fit
from tests.parts import Cut, new_plan
from tests.tiny import make_backbone_folder
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


class Operators(TorchDispatchMode):
    """Counts operators that compute; views launch no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if not func.is_view and func.__name__ not in ("empty.memory_format", "empty_like.default", "detach.default"):
            self.counts[func.__name__] += 1
        return made


class Kernel(torch.autograd.Function):
    """Stands for the kernel: one operator in each direction."""

    @staticmethod
    def forward(ctx, query, key, value, *prefix):
        ctx.save_for_backward(*prefix)
        return (query + key + value).transpose(1, 2)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.transpose(1, 2)
        return grad, grad, grad, *(torch.ones_like(x) for x in ctx.saved_tensors)


def operators_of_a_step(tmp_path, layers: int) -> Counter:
    """Return the operators of a step as a GPU runs it, but for the kernel and fused optimiser."""
    folder = make_backbone_folder(tmp_path / str(layers), "bert", num_hidden_layers=layers)
    encoder, losses, table = make_system("promcse", folder, dropout=0.1)
    found = []

    class Counted:
        def __init__(self, update, optimizer, device):
            self.update = update

        def __call__(self, staged):
            tensors = on_device(staged.arrays, torch.device("cpu"))
            with Operators() as operators:
                terms = self.update(staged, tensors)
            found.append(operators.counts)
            return terms

    kernel = SimpleNamespace(attend=lambda q, k, v, prefix, *_, **__: Kernel.apply(q, k, v, *prefix))
    with (
        mock.patch("cse.training.loop.why_not", lambda *_: ""),
        mock.patch("cse.training.loop.Captured", Counted),
        mock.patch("cse.model.dropout.dropout", torch.nn.functional.dropout),
        mock.patch.object(Encoder, "packs", lambda *_: True),
        mock.patch.dict(sys.modules, {"cse.model.packed_attention": kernel}),
    ):
        fit(
            (encoder, losses, table),
            new_plan(batch_size=8, max_steps=3, bf16=True),
            tmp_path / f"{layers} run",
            torch.device("cpu"),
        )
    return found[-1]


def test_a_layer_launches_no_more_than_it_did(tmp_path):
    one, two = (operators_of_a_step(tmp_path, layers) for layers in (1, 2))
    assert (two - one).total() <= 37, two - one
    assert (one - (two - one)).total() <= 100, one
