"""A step of every system and a few of every preset on the device, against the CPU; dropout off."""

from functools import partial

import numpy as np
import pytest

from cse.model.mlm_head import MaskedLmGenerator
from tests.gpu.base import CPU, TOLERANCE, distance, relative
from tests.parts import Cut
from tests.systems.tiny import COVER, Watch, make_world, run_training, tiny
from tests.training.systems import SYSTEMS, take_step

ROWS = np.array([3, 17, 0, 9, 31, 5, 22])
# what draws its own random numbers on the device
STILL = {"augment.dropout": False, "augment.shuffle_tokens": "none", "augment.cut_features": 0.0, "prompt.dropout": 0.0}


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", SYSTEMS)
def test_step_of_a_system(folder, device, figure, name, precision):
    """Loss terms, gradients and what is remembered, of one step."""
    expected = take_step(name, folder, ROWS, Cut(3, None), precision="fp64" if precision == "fp64" else "fp32")
    found = take_step(name, folder, ROWS, Cut(3, None), device=device, precision=precision)
    apart = relative(found["terms"], expected["terms"])
    gradients = distance(found["gradients"], expected["gradients"])
    figure(f"losses {apart:.0e}, gradients {gradients:.0e}", gradients)
    allowed = TOLERANCE[precision]
    assert apart <= allowed
    if precision == "bf16":  # gradients that nearly cancel lose more: no more than twice what they lose on the CPU
        rounded = take_step(name, folder, ROWS, Cut(3, None), precision=precision)
        allowed += 2 * distance(rounded["gradients"], expected["gradients"])
    assert gradients <= allowed
    if expected["memory"]:
        assert distance(found["memory"], expected["memory"]) <= TOLERANCE[precision]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("presets"))


@pytest.mark.parametrize("name", COVER)
def test_stage_train_with_a_preset(world, device, figure, tmp_path, monkeypatch, name):
    """The whole stage: settings, training, choice of weights, post-processing, checkpoint."""
    still = partial(MaskedLmGenerator.__init__, dropout=False)
    monkeypatch.setattr(MaskedLmGenerator, "__init__", lambda self, model, dropout: still(self, model))
    models, data, warm_start = world
    found = {}
    for where, place in ((CPU, "cpu"), (device, "device")):
        settings = tiny(name, models, warm_start, STILL | {"train.device": where.type})
        watch = Watch()
        run_training(settings, data, tmp_path / place, watch)
        found[place] = watch
        assert (tmp_path / place / "checkpoint").is_dir()
    if found["cpu"].state is None:
        figure("no training")
        return
    first, second = (dict(found[place].records[-1].terms) for place in ("device", "cpu"))
    apart = relative(first, second)
    figure(f"losses after {found['cpu'].state.step} steps {apart:.0e}", apart)
    assert next(found["device"].encoder.parameters()).device.type == "cpu", "the stage brings it back"
    assert apart <= TOLERANCE["fp32"] * 10
