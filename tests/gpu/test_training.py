"""A step and a few steps of every system, kind of prompt and preset on the device, against the CPU; dropout off."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from cse.model.mlm_head import MaskedLmGenerator
from tests.gpu.base import CPU, TOLERANCE, distance, every_step, fit, relative
from tests.parts import Cut, backbone_of, new_plan, new_prompt, replan, sentence_encoder
from tests.systems.tiny import Watch, cover, make_data, make_models, make_warm_start, run_training, structure, tiny
from tests.training.helpers import losses_of, make_table
from tests.training.systems import SYSTEMS, take_step

ROWS = np.array([3, 17, 0, 9, 31, 5, 22])
PLAN = new_plan(learning_rate=1e-3, batch_size=8, epochs=2, cut=Cut(3, None), seed=5)
PROMPTS: dict[str, tuple[str, dict]] = {kind: (kind, {}) for kind in ("key_value", "hidden_state", "input")}
PROMPTS |= {f"{kind} shared": (kind, {"shared": True}) for kind in ("key_value", "hidden_state")}
PROMPTS |= {net: ("key_value", {"reparametrize": net, "reparametrize_width": 24}) for net in ("mlp", "lstm")}
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


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", PROMPTS)
def test_training_of_a_kind_of_prompt(folder, device, figure, tmp_path, name, bf16):
    """Ten steps: losses of each, and the prompt afterwards."""

    def run(where, place):
        kind, options = PROMPTS[name]
        backbone = backbone_of(folder)
        backbone.switch_dropout_off()
        torch.manual_seed(11)
        prompt = new_prompt(kind, backbone, length=4, dropout=0.0, init_std=0.5, **options)
        encoder = sentence_encoder(backbone, prompt, pooler="mean")
        start = {name: weight.detach().clone() for name, weight in encoder.trainable().items()}
        system = encoder, losses_of(encoder), make_table(backbone)
        with every_step():
            _, state, recorder = fit(system, replan(PLAN, bf16=bf16), tmp_path / place, where)
        moved = {name: weight.cpu() - start[name] for name, weight in state.weights.items()}
        return moved, [record.terms["loss"] for record in recorder.records]

    expected, losses = run(CPU, "cpu")
    found, found_losses = run(device, "device")
    apart = max(abs(a - b) / abs(b) for a, b in zip(found_losses, losses, strict=True))
    moves = distance(found, expected)
    figure(f"losses of {len(losses)} steps {apart:.0e}, updates {moves:.0e}", moves)
    assert len(losses) == 10 and losses[-1] != losses[0]
    tolerance = TOLERANCE["bf16" if bf16 else "fp32"]
    assert apart <= tolerance
    # an optimiser divides by the gradient's size: what is near zero may go either way
    assert moves <= tolerance * 10


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("presets")
    models, data = make_models(root / "models"), make_data(root / "data")
    return models, data, make_warm_start(models, data, root / "warm")


@pytest.mark.parametrize("name", cover(structure))
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
