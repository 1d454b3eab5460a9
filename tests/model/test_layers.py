"""Layers beside numpy: the cheap dropout has the distribution of torch's, attention, convolutions, packed rows."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from cse.model.dropout import dropout
from cse.model.encoder import Encoder
from cse.model.mlm_head import UnigramGenerator
from cse.model.passes import Packed, pack_rows, prefix_attention
from cse.model.pooling import TokenCnn
from cse.settings.train import TrainSettings
from cse.training.batch import Batcher
from tests.model import reference
from tests.parts import PLAIN, prompted
from tests.training.systems import CPU, make_system


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_scale_and_mean(p, dtype):
    torch.manual_seed(0)
    found = dropout(torch.ones(1001, 997, dtype=dtype), p)
    zero = (found == 0).float()
    assert zero.mean().item() == pytest.approx(p, abs=0.002)
    assert found.max().item() == pytest.approx(1 / (1 - p), rel=1e-2)
    assert found.float().mean().item() == pytest.approx(1.0, abs=0.005)
    # neighbours share 64 random bits: they must be independent all the same
    pairs = (zero[:, :-1] * zero[:, 1:]).mean().item()
    assert pairs == pytest.approx(p * p, abs=0.002)
    # a seed fixes the mask, and the gradient follows it
    torch.manual_seed(0)
    again = dropout(values := torch.ones(1001, 997, dtype=dtype, requires_grad=True), p)
    again.sum().backward()
    assert torch.equal(again, found) and torch.equal(values.grad, found)


@pytest.mark.parametrize("prompt", ["shared", "per row"])
@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("probability", [0.0, 0.2])
@pytest.mark.parametrize("training", [True, False])
def test_both_ways_to_attend_equal_the_formula(monkeypatch, prompt, scaling, probability, training):
    """In training and at inference, up to the draw of the mask: ``softmax(Q [Pk; K]^T scale + mask) [Pv; V]``."""
    drawn = []
    monkeypatch.setattr("cse.model.passes.cheap_dropout", lambda share, p: drawn.append(p) or 2 * share)
    (query, key, value), mask = torch.randn(3, 2, 3, 5, 4).double(), torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[1, ..., -2:] = False  # of 2 prompt columns and 5 tokens
    prompts = torch.randn(2, 3, 2, 4).double() if prompt == "shared" else torch.randn(2, 2, 3, 2, 4).double()
    given = {"dropout": probability} if probability else {}
    with torch.set_grad_enabled(training):
        found, weights = prefix_attention(
            nn.Identity(), query, key, value, mask, scaling=scaling, prefix=tuple(prompts), **given
        )
    bias = np.where(mask[..., 2:], 0.0, -np.inf)
    expected = reference.attention(
        *(x.numpy() for x in (query, key, value)), bias=bias, scaling=scaling or 0.5, prefix=prompts.numpy()
    )
    assert weights is None
    assert drawn == ([probability] if training or probability else [])
    np.testing.assert_allclose(found, 2 * expected if drawn else expected, atol=1e-12)


@pytest.mark.parametrize("width", [12, 32])
def test_convolutions_over_tokens(width):
    torch.manual_seed(0)
    cnn = TokenCnn(width).double()
    tokens_BLD = torch.randn(3, 7, width, dtype=torch.float64)
    mask_BL = (torch.arange(7) < torch.tensor([[7], [4], [2]])).long()
    mask, expected = mask_BL.numpy()[..., None], []
    for window, size in zip(cnn.windows, (1, 3, 5), strict=True):
        weight, bias = window.weight.detach().numpy(), window.bias.detach().numpy()
        padded = np.pad(tokens_BLD.numpy() * mask, ((0, 0), (size // 2, size // 2), (0, 0)))
        around = np.lib.stride_tricks.sliding_window_view(padded, size, axis=1)
        expected.append(np.maximum(np.einsum("bjck,ock->bjo", around, weight) + bias, 0) * mask)
    np.testing.assert_allclose(cnn(tokens_BLD, mask_BL).detach().numpy(), np.concatenate(expected, axis=2), atol=1e-12)


def test_the_ends_of_unigram_draws_are_words_of_the_text():
    columns = [np.array([2, 5, 5, 3]), np.array([2, 6, 5, 3]), np.array([], dtype=int)]
    generator = UnigramGenerator(columns, 8, special=(2, 3))
    ends = generator.propose(np.zeros((1, 2), int), np.ones((1, 2), int), np.array([[0.0, 1.0 - 1e-16]]))
    assert set(ends[0].tolist()) <= {5, 6}


ROWS = np.array([3, 17, 0, 9, 31])


def attend_in_words(query_BHTK, key_BHTK, value_BHTK, prefix, packed, *, dropout, scaling):
    """What the kernel computes without dropout, row by row."""
    rows = []
    for start, end in zip(packed.starts.tolist(), packed.starts.tolist()[1:], strict=False):
        query, key, value = (x[0, :, start:end] for x in (query_BHTK, key_BHTK, value_BHTK))
        if prefix is not None:
            key, value = (torch.cat([own.to(x.dtype), x], dim=1) for own, x in zip(prefix, (key, value), strict=True))
        rows.append((query @ key.transpose(1, 2) * scaling).softmax(dim=-1) @ value)
    return torch.cat(rows, dim=1).transpose(0, 1)[None]


@pytest.fixture
def packs(monkeypatch):
    """Pack rows on the CPU, which has no kernel."""
    monkeypatch.setattr(Encoder, "packs", lambda *_: True)
    monkeypatch.setitem(sys.modules, "cse.model.packed_attention", SimpleNamespace(attend=attend_in_words))


@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_packing_and_padding_again(multiple):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 7, 9)
    mask_BL = (np.arange(7) < lengths[:, None]).astype(np.int64)
    places, starts = pack_rows(mask_BL, multiple)
    packed = Packed(torch.from_numpy(places), torch.from_numpy(starts), 7)
    values = torch.from_numpy(rng.normal(size=(9, 7, 2)))
    assert len(places) == starts[-1] == -(-lengths.sum() // multiple) * multiple
    assert np.diff(starts)[:9].tolist() == lengths.tolist() and np.diff(starts).max() <= 7
    assert torch.equal(packed.pad(packed.pack(values), 9), values * torch.from_numpy(mask_BL)[:, :, None])
    # batches of as many rows and about as many tokens have the same shapes
    other = pack_rows((np.arange(7) < np.roll(lengths, 1)[:, None]).astype(np.int64), multiple)
    assert [x.shape for x in other] == [places.shape, starts.shape]


def step(encoder, losses, table, *, alike: bool):
    settings = TrainSettings(row_groups=None if alike else 3)
    batcher = Batcher(encoder=encoder, settings=settings, augment=PLAIN, device=CPU, bf16=True, alike=alike)
    staged = batcher.stage(table, ROWS, step=1, epoch=0)
    tensors = [torch.from_numpy(array) for array in staged.arrays]
    losses(replace(batcher, bf16=False).encode(staged, tensors))["loss"].backward()
    gradients = {name: weight.grad.clone() for name, weight in encoder.trainable().items()}
    encoder.zero_grad()
    return staged, gradients


@pytest.mark.parametrize("name", ["promcse", "hinge", "full"])
def test_a_packed_step_has_the_gradients_of_a_padded_one(tiny_folders, packs, name):
    system = make_system(name, tiny_folders["bert"], dropout=0.0)
    _, expected = step(*system, alike=False)
    staged, found = step(*system, alike=True)
    assert staged.packed and len(staged.own) == 1
    for part, gradient in expected.items():
        assert (found[part] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-6, part


@pytest.mark.parametrize("pooler", ["cls", "mean"])
@pytest.mark.parametrize("frozen", [True, False])
def test_an_encoder_in_16_bits_sums_and_gives_vectors_in_32(bert, pooler, frozen):
    encoder = prompted(bert, length=3, pooler=pooler)
    encoder.backbone.requires_grad_(not frozen)
    sentences = ["red bird", "", "a small dog sleeps on the mat", "the old house", "a cat"]
    exact = encoder.encode(sentences)
    for encoder.precision in ("bf16", "fp16"):
        found = encoder.encode(sentences)
        assert found.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
        assert 1e-6 < np.abs(found - exact).max() < 0.03
    encoder.precision = "fp32"
    np.testing.assert_array_equal(encoder.encode(sentences), exact)
