"""Gradient caching. What is pinned here, for every system of the literature and with dropout on:

1. the loss and the gradient of a batch that is encoded twice, slice by slice, are those of one that is encoded once;
2. the test is not empty: dropout was on, there were several slices, each was encoded a second time;
3. what is kept between the passes does not grow with the layers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cse.settings.train import AugmentSettings
from tests.parts import PLAIN, Cut
from tests.training.helpers import encode_batch
from tests.training.systems import CPU, SYSTEMS, make_system

ROWS = np.array([3, 17, 0, 9, 31, 5, 22, 8, 14, 30])


def step(system, cut, *, augment=PLAIN, bf16=False, device=CPU):
    """Return the loss and every gradient of one step, and how often the first layer ran."""
    encoder, losses, table = system
    encoder.to(device), losses.to(device)
    calls = []
    layer = encoder.backbone.model.encoder.layer[0]
    hook = layer.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    torch.manual_seed(7)
    batch = encode_batch(
        encoder, table, ROWS, cut=cut, augment=augment, step=3, epoch=0,
        device=device, bf16=bf16,
    )  # fmt: skip
    terms = losses(batch)
    terms["loss"].backward()
    hook.remove()
    weights = encoder.trainable() | losses.trainable()
    return terms["loss"].item(), {n: w.grad.clone() for n, w in weights.items() if w.grad is not None}, len(calls)


def assert_same(direct, cached, tolerance=1e-6):
    loss, gradients, passes = direct
    cached_loss, cached_gradients, cached_passes = cached
    assert cached_loss == pytest.approx(loss, rel=tolerance)
    assert gradients.keys() == cached_gradients.keys()
    for name, gradient in gradients.items():
        scale = max(gradient.abs().max().item(), 1e-3)
        assert (cached_gradients[name] - gradient).abs().max().item() <= tolerance * scale, name
    assert any(gradient.abs().max() > 1e-4 for gradient in gradients.values())
    assert cached_passes > passes  # the second passes really ran


@pytest.mark.parametrize("name", SYSTEMS)
def test_two_passes_give_the_gradient_of_one_with_dropout_on(folder, name):
    system = [make_system(name, folder, dropout=0.1) for _ in range(3)]
    sentences = len(system[0][2].columns) * len(ROWS)
    direct = step(system[0], Cut(4, None))
    assert_same(direct, step(system[1], Cut(1, mini_batch_size=-(-sentences // 4))))
    still = step([make_system(name, folder, dropout=0.0)][0], Cut(4, None))
    assert still[0] != direct[0]  # dropout was on


def test_augmented_copies_and_bf16(folder):
    augment = AugmentSettings(repeat_words=0.3, shuffle_tokens="paper", cut_features=0.2)
    direct = step(make_system("promcse", folder, dropout=0.1), Cut(4, None), augment=augment)
    cached = step(make_system("promcse", folder, dropout=0.1), Cut(1, 5), augment=augment)
    assert_same(direct, cached)
    direct, cached = (
        step(make_system("d2cse", folder, dropout=0.1), cut, bf16=True) for cut in (Cut(4, None), Cut(1, 5))
    )
    assert_same(direct, cached, 5e-3)  # states and their gradients are rounded to 8 bits, in another order


def test_what_is_kept_does_not_grow_with_the_layers(folder):
    def kept(cut):
        """Bytes that autograd holds between the passes, each storage once."""
        encoder, losses, table = make_system("promcse", folder, dropout=0.1)
        held = {}

        def note(tensor):
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            batch = encode_batch(
                encoder, table, ROWS, cut=cut, step=0,
                epoch=0, device=torch.device("cpu"), bf16=False,
            )  # fmt: skip
            losses(batch)
        return sum(held.values())

    assert kept(Cut(1, 5)) < kept(Cut(4, None)) / 10
