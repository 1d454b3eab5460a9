"""Random numbers on the device: dropout of copies and steps, what is drawn twice, and what gradient caching replays."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from cse.settings.train import AugmentSettings
from tests.parts import PLAIN, Cut
from tests.training.helpers import encode_batch
from tests.training.systems import SYSTEMS, make_system
from tests.training.test_replay import ROWS, assert_same, step

SLICES = Cut(4, None)


def encode(system, device, *, seed=7, augment=PLAIN):
    encoder, _, table = system
    encoder.to(device)
    torch.manual_seed(seed)
    with torch.no_grad():
        how = {"cut": SLICES, "augment": augment, "device": device, "bf16": False}
        return encode_batch(encoder, table, ROWS, step=3, epoch=0, **how)


def apart(first, second) -> float:
    return ((first - second).norm(dim=1) / first.norm(dim=1)).min().item()


@pytest.mark.parametrize("name", SYSTEMS)
def test_gradient_caching_equals_the_plain_path(folder, device, figure, name):
    """With dropout on: the second pass draws what the first one drew."""
    systems = [make_system(name, folder, dropout=0.1) for _ in range(3)]
    sentences = len(systems[0][2].columns) * len(ROWS)
    direct = step(systems[0], SLICES, device=device)
    cached = step(systems[1], Cut(1, mini_batch_size=-(-sentences // 4)), device=device)
    change = abs(cached[0] - direct[0]) / abs(direct[0])
    figure(f"loss {change:.0e}", change)
    assert_same(direct, cached, tolerance=1e-6 if device.type == "cpu" else 1e-4)
    still = step(make_system(name, folder, dropout=0.0), SLICES, device=device)
    assert still[0] != direct[0], "dropout was off"


def test_gradient_caching_in_bf16(folder, device):
    new = partial(make_system, "promcse", folder, dropout=0.1)
    direct, cached = (step(new(), cut, bf16=True, device=device) for cut in (SLICES, Cut(1, 5)))
    assert_same(direct, cached, tolerance=1e-6 if device.type == "cpu" else 1e-2)


@pytest.mark.parametrize("only", ["prompt", "backbone"])
def test_two_copies_of_a_sentence_have_their_own_masks(folder, device, figure, only):
    system = make_system("promcse", folder, dropout=0.1)
    if only == "prompt":
        system[0].backbone.switch_dropout_off()
    else:
        system[0].prompt.dropout = 0.0
    first, second = encode(system, device).views
    figure(f"copies differ by {apart(first, second):.3f} or more")
    assert apart(first, second) > 1e-3
    again, _ = encode(system, device).views
    assert torch.allclose(again, first, rtol=1e-5, atol=1e-6), "a seed does not fix the masks"
    other, _ = encode(system, device, seed=8).views
    assert apart(first, other) > 1e-3


@pytest.mark.parametrize("change", [{"shuffle_tokens": "paper"}, {"cut_features": 0.2}], ids=["shuffle", "cut"])
def test_augmentation_changes_one_copy(folder, device, change):
    system = make_system("promcse", folder, dropout=0.0)
    plain = encode(system, device).views
    changed = encode(system, device, augment=AugmentSettings(**change)).views
    which, other = (0, 1) if "shuffle_tokens" in change else (1, 0)
    torch.testing.assert_close(changed[other], plain[other], rtol=1e-5, atol=1e-5)
    assert (changed[which] - plain[which]).norm() > 1e-3
