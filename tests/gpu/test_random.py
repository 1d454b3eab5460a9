"""Random numbers on the device: a second pass draws what the first one drew, a run that goes on what is left."""

from functools import partial

import pytest

from cse.errors import Interrupted
from cse.training.loop import REPORT_EVERY
from tests.gpu.base import distance, fit, relative
from tests.parts import Cut, new_plan, replan
from tests.training.helpers import Stop
from tests.training.systems import SYSTEMS, assert_same_step, make_system
from tests.training.test_slices import direct_and_cached

EPOCHS = -(-2 * REPORT_EVERY // 5)  # of 40 rows


@pytest.mark.parametrize("name", SYSTEMS)
def test_gradient_caching_equals_the_plain_path(folder, device, figure, name):
    direct, cached = direct_and_cached(name, folder, device=device, precision="fp32")
    change = relative(cached["terms"], direct["terms"])
    figure(f"losses {change:.0e}", change)
    assert_same_step(cached, direct, tolerance=1e-5 if device.type == "cpu" else 1e-4)


def test_gradient_caching_in_bf16(folder, device):
    direct, cached = direct_and_cached("promcse", folder, device=device, precision="bf16")
    assert_same_step(cached, direct, tolerance=1e-2)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["promcse", "full", "d2cse", "queue"])
def test_stopped_and_started_again(folder, device, figure, tmp_path, name, bf16):
    plan = new_plan(learning_rate=1e-3, batch_size=8, epochs=2, cut=Cut(3, None), save_seconds=3600, seed=5, bf16=bf16)
    new = partial(make_system, name, folder, dropout=0.1)
    _, whole, _ = fit(new(), plan, tmp_path / "whole", device)
    with pytest.raises(Interrupted):
        fit(new(), plan, tmp_path / "cut", device, Stop())
    _, found, recorder = fit(new(), plan, tmp_path / "cut", device)
    assert recorder.starts == [(REPORT_EVERY, 5 * EPOCHS)]
    apart = distance(found.weights, whole.weights)
    figure(f"weights {apart:.0e}", apart)
    assert apart <= (0.0 if device.type == "cpu" else 2e-2 if bf16 else 1e-4)
    if whole.memory:
        assert distance(found.memory, whole.memory) <= (0.0 if device.type == "cpu" else 5e-2)
    _, other, _ = fit(new(), replan(plan, seed=6), tmp_path / "other", device)
    assert distance(other.weights, whole.weights) > apart, "another seed is no farther away"
