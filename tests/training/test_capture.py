"""Which trainings run as a captured graph on a GPU, and how many launches a step of packed rows has there."""

import sys
from collections import Counter
from types import SimpleNamespace

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


@pytest.fixture
def found(monkeypatch) -> list[Counter]:
    """The launches of each step, with what stands for packed rows, a dropout of one launch and the fused optimiser."""
    found: list[Counter] = []

    def counted(update, optimizer, device, reason):
        def run(staged):
            with Launches() as launched:
                terms = update(staged, on_device(staged.arrays, device))
            found.append(launched.counts)
            return terms

        return run

    kernel = SimpleNamespace(attend=lambda q, k, v, prefix, *_, **__: Kernel.apply(q, k, v, *prefix))
    monkeypatch.setattr(Encoder, "packs", lambda *_: True)
    monkeypatch.setitem(sys.modules, "cse.model.packed_attention", kernel)
    monkeypatch.setattr("cse.model.dropout.dropout", lambda values, p: torch.native_dropout(values, p, True)[0])
    monkeypatch.setattr("torch.optim.AdamW", lambda *given, fused, **more: AdamW(*given, fused=True, **more))
    monkeypatch.setattr("cse.training.loop.why_not", lambda *_: "")
    monkeypatch.setattr("cse.training.loop._runner", counted)
    return found


@pytest.mark.parametrize(("name", "layer", "rest"), [("promcse", 32, 82), ("hinge", 32, 227)])
def test_a_step_launches_no_more_than_it_did(tmp_path, found, name, layer, rest):
    """In bf16, unsupervised by NT-Xent and of triplets with the hinge: in each layer, and beside them."""
    for layers in (2, 4):
        folder = make_backbone_folder(tmp_path / str(layers), "bert", num_hidden_layers=layers)
        plan = new_plan(batch_size=8, max_steps=3, bf16=True)
        fit(make_system(name, folder, dropout=0.1), plan, tmp_path / f"{layers} run", torch.device("cpu"))
    two, four = found[2], found[5]
    assert 0 < (four - two).total() <= 2 * layer, four - two
    assert 0 < two.total() - (four - two).total() <= rest, two - (four - two)
