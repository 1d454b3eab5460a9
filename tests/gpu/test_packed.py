"""The kernel for packed rows against attention in words, and a captured step against one that is not."""

from importlib.util import find_spec
from unittest import mock

import numpy as np
import pytest
import torch

from cse.model.encoder import Encoder
from cse.model.passes import Packed
from cse.training import loop
from tests.gpu.base import distance, fit, needs_gpu
from tests.model.test_layers import attend_in_words
from tests.parts import Cut, new_plan
from tests.tiny import make_backbone_folder
from tests.training.systems import make_system

LENGTHS = [3, 5, 20, 7, 16, 31, 1, 17]
# TRITON_INTERPRET=1 runs kernels on a CPU
needs_kernel = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


def problem(device, prompt: int, *, width: int = 32, dtype=torch.float32, prompt_dropout: float = 0.0):
    """Return queries, keys, values, a table of prompts, and a function of the four that attends."""
    from cse.model.packed_attention import attend

    torch.manual_seed(0)
    heads, starts = 2, torch.tensor([0, *np.cumsum(LENGTHS)], device=device)
    leaves = [torch.randn(sum(LENGTHS), heads * width, device=device).to(dtype).requires_grad_() for _ in range(3)]
    table = torch.randn(prompt, 2, heads, width, device=device, requires_grad=True)
    packed = Packed(starts, starts, max(LENGTHS), prompt_dropout)

    def run(leaves, attend=attend, dropout: float = 0.0):
        tokens = [x.view(1, -1, heads, width).transpose(1, 2) for x in leaves[:3]]
        prefix = tuple(leaves[3].permute(1, 2, 0, 3).unbind()) if prompt else None
        return attend(*tokens, prefix, packed, dropout=dropout, scaling=width**-0.5)

    return [*leaves, table] if prompt else leaves, run


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("prompt", "width"), [(0, 64), (3, 32), (16, 64), (20, 32)])
def test_kernel(device, figure, prompt, width, dtype):
    if device.type == "cpu" and dtype != torch.float32:
        pytest.skip("needs a GPU")
    leaves, run = problem(device, prompt, width=width, dtype=dtype)
    found = run(leaves)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = run(exact, attend_in_words)
    towards = torch.randn(expected.shape, dtype=torch.float64, device=device)
    gradients = torch.autograd.grad(found, leaves, towards.to(dtype))
    others = torch.autograd.grad(expected, exact, towards)
    apart = [
        ((a.double() - b).norm() / b.norm()).item()
        for a, b in zip((found, *gradients), (expected, *others), strict=True)
    ]
    figure(f"{max(apart):.0e}", max(apart))
    assert max(apart) <= {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[dtype]


@needs_kernel
def test_a_kernel_that_is_wrong_or_fails_is_not_used(device, monkeypatch, caplog):
    """The check before its first use sees a wrong scale and an error of the compiler, and passes it as it is."""
    from cse.model import packed_attention

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    check, launch = packed_attention.is_right.__wrapped__, packed_attention._launch
    assert check(device, 32, dtype) and not caplog.messages

    def wrong(tensors, constants, **more):
        launch(tensors, (*constants[:-1], 1.1 * constants[-1]), **more)

    monkeypatch.setattr(packed_attention, "_launch", wrong)
    assert not check(device, 32, dtype)
    monkeypatch.setattr(packed_attention, "_launch", lambda *_, **__: 1 / 0)
    assert not check(device, 32, dtype)
    assert "from what it should give" in caplog.messages[0] and "division by zero" in caplog.messages[1]


@needs_kernel
def test_kernel_with_dropout(device, figure):
    """A seed fixes the masks, the gradient is that of the same masks, and they keep the mean."""
    leaves, run = problem(device, 3, prompt_dropout=0.2)
    weight = torch.randn(1, sum(LENGTHS), 2, 32, device=device)

    def value():
        torch.manual_seed(5)
        return (run(leaves, dropout=0.3) * weight).sum()

    gradients = torch.autograd.grad(value(), leaves)
    with torch.no_grad():
        for leaf, gradient in zip(leaves, gradients, strict=True):
            change = 1e-2 * torch.randn_like(leaf)
            leaf.add_(change)
            above = value()
            leaf.sub_(2 * change)
            slope = (above - value()) / 2
            leaf.add_(change)
            assert slope.item() == pytest.approx((gradient * change).sum().item(), rel=2e-2, abs=2e-2)
        assert not torch.equal(run(leaves, dropout=0.3), run(leaves, dropout=0.3))
        count = 400 if device.type == "cuda" else 8
        _, still = problem(device, 3)
        mean = sum(run(leaves, dropout=0.3) for _ in range(count)) / count
        apart = ((mean - still(leaves)).norm() / still(leaves).norm()).item()
    figure(f"mean of {count} masks {apart:.0e}")
    assert apart <= 1.5 * count**-0.5


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A BERT whose heads are as wide as the kernel wants."""
    shape = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    return make_backbone_folder(tmp_path_factory.mktemp("packed") / "bert", "bert", max_position_embeddings=90, **shape)


@needs_gpu
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "room"), [("promcse", True), ("hinge", True), ("promcse", False)])
def test_a_captured_training_is_the_one_without_a_graph(wide, device, figure, tmp_path, monkeypatch, name, room, bf16):
    """Dropout on: a replayed step draws what the step itself would, whether rows are packed (bf16) or not."""
    if not room:  # graphs are given up at each new shape
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (0, 0))
    plan = new_plan(learning_rate=1e-3, batch_size=8, epochs=4, cut=Cut(None, None), seed=5, bf16=bf16)

    class Plain(loop.Captured):
        def _capture(self, staged):
            raise AssertionError

        def __call__(self, staged):
            self.graphs = {}
            return super().__call__(staged)

    captures = mock.Mock(side_effect=loop.Captured._capture)
    with mock.patch.object(loop.Captured, "_capture", lambda *given: captures(*given)):
        _, found, _ = fit(make_system(name, wide, dropout=0.1), plan, tmp_path / "captured", device)
    assert captures.call_count >= 1
    with mock.patch.object(loop, "Captured", Plain):
        _, expected, _ = fit(make_system(name, wide, dropout=0.1), plan, tmp_path / "plain", device)
    apart = distance(found.weights, expected.weights)
    figure(f"weights {apart:.0e}", apart)
    assert apart <= (2e-2 if bf16 else 1e-4)


@needs_gpu
def test_packed_rows_give_the_gradient_of_padded_ones(wide, device, figure, tmp_path):
    plan = new_plan(learning_rate=1e-3, batch_size=8, epochs=2, cut=Cut(None, None), seed=5, bf16=True)
    _, found, _ = fit(make_system("promcse", wide, dropout=0.0), plan, tmp_path / "packed", device)
    with mock.patch.object(Encoder, "packs", lambda *_: False):
        _, expected, _ = fit(make_system("promcse", wide, dropout=0.0), plan, tmp_path / "padded", device)
    apart = distance(found.weights, expected.weights)
    figure(f"weights after {found.step} steps {apart:.0e}", apart)
    assert 0 < apart <= 5e-2
