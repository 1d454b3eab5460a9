"""Random numbers on the device: gradient caching replays what its first pass drew."""

from __future__ import annotations

from functools import partial

import pytest

from tests.parts import Cut
from tests.training.systems import SYSTEMS, make_system
from tests.training.test_replay import ROWS, assert_same, step

SLICES = Cut(4, None)


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
