"""Which trainings run as a captured graph on a GPU, and how many launches a step of packed rows has there."""

import sys
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from cse.losses.group import ALONE
from cse.model.encoder import Encoder
from cse.model.passes import on_device
from cse.training.capture import why_not
from tests.gpu.base import fit
from tests.parts import Cut, new_plan
from tests.tiny import make_backbone_folder
from tests.training.systems import SYSTEMS, make_system

CAPTURED = {"promcse", "hinge"}


def why(folder, name="promcse", device="cuda", **changes) -> str:
    (encoder, losses, _), plan = make_system(name, folder, dropout=0.1), new_plan(**changes)
    return why_not(encoder, losses, plan.train, plan.augment, torch.device(device), ALONE)


def test_systems_that_are_captured_and_settings_with_which_none_is(folder):
    assert {name for name in SYSTEMS if why(folder, name) == ""} == CAPTURED
    assert why(folder, device="cpu") == "train.device"
    assert why(folder, cut=Cut(None, 4)) == "train.mini_batch_size"
    assert why(folder, optimizer="rmsprop") == "train.optimizer"


# launches of a step in bf16: forward and backward in each layer, beside the layers, and of the optimiser
RECORDED = {"promcse": (32, 80, 2), "hinge": (32, 225, 2)}
NO_LAUNCH = {
    "empty.memory_format", "empty_like.default", "detach.default", "_unsafe_view.default", "promote_types.default",
    "_record_function_enter_new.default", "_record_function_exit._RecordFunction",
}  # fmt: skip


class Launches(TorchDispatchMode):
    """Counts operators that compute; views launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if not func.is_view and func.__name__ not in NO_LAUNCH:
            self.counts[func.__name__] += 1
        return made


class Kernel(torch.autograd.Function):
    """Stands for the kernel of packed rows, about as many operators."""

    @staticmethod
    def forward(ctx, query, key, value, *prefix):
        ctx.save_for_backward(*prefix)
        return (query + key + value).transpose(1, 2)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.transpose(1, 2)
        return grad, grad, grad, *(torch.ones_like(x) for x in ctx.saved_tensors)


def as_on_a_gpu() -> list:
    """What stands for rows that are packed, a dropout of one launch and the fused optimiser."""
    kernel = SimpleNamespace(attend=lambda q, k, v, prefix, *_, **__: Kernel.apply(q, k, v, *prefix))
    return [
        mock.patch.object(Encoder, "packs", lambda *_: True),
        mock.patch.dict(sys.modules, {"cse.model.packed_attention": kernel}),
        mock.patch("cse.model.dropout.dropout", lambda values, p: torch.native_dropout(values, p, True)[0]),
        mock.patch("torch.optim.AdamW", lambda *given, fused, **more: AdamW(*given, fused=True, **more)),
    ]


def launches(name: str, layers: int, root) -> tuple[Counter, Counter]:
    """Return the launches of forward and backward of a step and those of the optimiser."""
    folder = make_backbone_folder(root / f"{layers} layers", "bert", num_hidden_layers=layers)
    found = []

    class Counted:
        """In the place of what captures steps."""

        def __init__(self, update, optimizer, device):
            self.update = update
            optimizer.register_step_pre_hook(lambda *_: found.append(self.counting.counts.copy()))

        def __call__(self, staged):
            with Launches() as self.counting:
                terms = self.update(staged, on_device(staged.arrays, torch.device("cpu")))
            found.append(self.counting.counts - found[-1])
            return terms

    plan = new_plan(batch_size=8, max_steps=3, bf16=True)
    with ExitStack() as patches:
        patches.enter_context(mock.patch("cse.training.loop.why_not", lambda *_: ""))
        patches.enter_context(mock.patch("cse.training.loop.Captured", Counted))
        for each in as_on_a_gpu():
            patches.enter_context(each)
        fit(make_system(name, folder, dropout=0.1), plan, root / f"{layers} run", torch.device("cpu"))
    return found[-2], found[-1]


@pytest.mark.parametrize("name", RECORDED)
def test_a_step_launches_no_more_than_it_did(tmp_path, name):
    """Unsupervised by NT-Xent, and of triplets with the hinge."""
    (two, optimizer), (four, same) = (launches(name, layers, tmp_path) for layers in (2, 4))
    layer, fixed, of_optimizer = RECORDED[name]
    assert optimizer == same, "the weights of all layers are one"
    assert 0 < (four - two).total() <= 2 * layer, four - two
    assert 0 < two.total() - (four - two).total() <= fixed, two - (four - two)
    assert 0 < optimizer.total() <= of_optimizer, optimizer
