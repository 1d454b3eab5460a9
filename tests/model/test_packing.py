"""Packed rows: padded batches as tokens one behind the other, and layers that see no padding."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cse.model.encoder import Encoder
from cse.model.passes import Packed, pack_rows
from cse.settings.train import TrainSettings
from cse.training.batch import Batcher
from tests.parts import PLAIN
from tests.training.systems import CPU, make_system

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


def batcher_of(encoder, settings, *, alike: bool) -> Batcher:
    return Batcher(encoder=encoder, settings=settings, augment=PLAIN, device=CPU, bf16=True, alike=alike)


def step(encoder, losses, table, *, alike: bool):
    batcher = batcher_of(encoder, TrainSettings(row_groups=None if alike else 3), alike=alike)
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
