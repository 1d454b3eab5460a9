"""The losses against numpy float64, written from the equations, and their properties."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cse.objectives.cosine import cosines
from cse.objectives.energy_hinge import energy_hinge
from cse.objectives.nt_xent import nt_xent, nt_xent_two_views
from cse.settings.objective import ObjectiveSettings
from cse.stages.build.losses import TERMS
from cse.training.group import ALONE
from tests.training.helpers import contrast, losses_of

ROWS, WIDTH = 6, 5


@pytest.fixture
def views() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    return tuple(torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))


def values(views: tuple[torch.Tensor, ...], **terms: dict) -> dict[str, torch.Tensor]:
    """What the terms of these settings make of the views of a batch."""
    return losses_of(None, **terms)(
        SimpleNamespace(views=views, projected_XD=views[0], rows=range(len(views[0])), group=ALONE, step=0)
    )


def cos(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def reference_nt_xent(z1, z2, z3=None, *, temperature, weight=0.0) -> float:
    total = 0.0
    for i in range(len(z1)):
        denominator = sum(np.exp(cos(z1[i], z2[j]) / temperature) for j in range(len(z2)))
        if z3 is not None:
            for j in range(len(z3)):
                factor = np.exp(weight) if i == j else 1.0
                denominator += factor * np.exp(cos(z1[i], z3[j]) / temperature)
        total += -np.log(np.exp(cos(z1[i], z2[i]) / temperature) / denominator)
    return total / len(z1)


def reference_hinge(z1, z2, z3, *, margin) -> float:
    total = 0.0
    for i in range(len(z1)):
        negatives = [cos(z1[i], z2[j]) for j in range(len(z2)) if j != i]
        negatives += [cos(z1[i], z3[j]) for j in range(len(z3))]
        assert len(negatives) == 2 * len(z1) - 1
        total += max(0.0, margin + max(negatives) - cos(z1[i], z2[i]))
    return total / len(z1)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_nt_xent_of_two_views(views, temperature):
    z1, z2, _ = views
    found = nt_xent(cosines(z1, z2), temperature=temperature)
    assert found.item() == pytest.approx(reference_nt_xent(z1.numpy(), z2.numpy(), temperature=temperature), abs=1e-10)


@pytest.mark.parametrize("weight", [0.0, 1.0, -0.7])
def test_nt_xent_with_hard_negatives_and_their_log_weight(views, weight):
    z1, z2, z3 = views
    given = {"hard_negative_weight": weight} if weight else {}
    found = nt_xent(cosines(z1, z2), cosines(z1, z3), temperature=0.05, **given)
    expected = reference_nt_xent(*(z.numpy() for z in views), temperature=0.05, weight=weight)
    assert found.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("margin", [0.0, 0.2, 1.0])
def test_energy_hinge(views, margin):
    z1, z2, z3 = views
    found = energy_hinge(z1, z2, z3, margin=margin)
    expected = reference_hinge(*(z.numpy() for z in views), margin=margin)
    assert expected > 0
    assert found.item() == pytest.approx(expected, abs=1e-10)


def test_hinge_is_zero_where_every_positive_wins_by_the_margin():
    z1 = torch.eye(4, dtype=torch.float64)
    assert energy_hinge(z1, z1, -z1, margin=0.2).item() == 0.0


@pytest.mark.parametrize(
    ("of_nt_xent", "of_hinge", "temperature", "weight", "margin"),
    [
        ({}, {}, 0.05, 0.0, 0.2),
        ({"temperature": 0.3, "hard_negative_weight": 0.7}, {"margin": 0.5}, 0.3, 0.7, 0.5),
    ],
)
def test_settings_and_defaults_reach_every_term(views, of_nt_xent, of_hinge, temperature, weight, margin):
    arrays = [z.numpy() for z in views]
    terms = values(views, nt_xent={"weight": 0.5} | of_nt_xent, energy_hinge=of_hinge)
    contrast = reference_nt_xent(*arrays, temperature=temperature, weight=weight)
    hinge = reference_hinge(*arrays, margin=margin)
    assert list(terms) == ["nt_xent", "energy_hinge", "loss"]
    assert terms["nt_xent"].item() == pytest.approx(contrast, abs=1e-10)
    assert terms["energy_hinge"].item() == pytest.approx(hinge, abs=1e-10)
    assert terms["loss"].item() == pytest.approx(0.5 * contrast + 10 * hinge, rel=1e-10)
    pairs = values(views[:2], nt_xent=of_nt_xent, energy_hinge={"weight": 0.0})
    assert pairs["loss"].item() == pytest.approx(reference_nt_xent(*arrays[:2], temperature=temperature), abs=1e-10)


def test_a_queue_and_both_views_reach_the_contrast(views):
    z1, z2, queue = views
    batch = SimpleNamespace(views=(z1, z2), projected_XD=z1, group=ALONE, step=0)
    alone = contrast(None, temperature=0.3)
    with_queue = contrast(None, temperature=0.3, queue=SimpleNamespace(negatives=lambda: queue))
    terms = {"loss": with_queue(batch)}
    expected = nt_xent(cosines(z1, z2), queue_AQ=cosines(z1, queue), temperature=0.3)
    assert terms["loss"].item() == pytest.approx(expected.item(), rel=1e-12)
    assert terms["loss"] > alone(batch)
    both = values((z1, z2), nt_xent={"temperature": 0.3, "two_views": True}, energy_hinge={"weight": 0.0})["loss"]
    assert both.item() == pytest.approx(nt_xent_two_views(z1, z2, temperature=0.3).item(), rel=1e-12)


def test_a_term_without_weight_is_not_computed(views):
    assert list(values(views, energy_hinge={"weight": 0.0})) == ["nt_xent", "loss"]
    assert list(values(views, nt_xent={"weight": 0.0})) == ["energy_hinge", "loss"]


def test_gradient_equals_finite_differences(views):
    inputs = tuple(view.clone().requires_grad_() for view in views)
    assert torch.autograd.gradcheck(
        lambda *z: values(z, nt_xent={"hard_negative_weight": 0.3})["loss"], inputs, eps=1e-6, atol=1e-4
    )


def test_order_of_rows_and_scale_of_vectors_do_not_matter(views):
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    base = values(views)["loss"].item()
    assert values(tuple(view[order] for view in views))["loss"].item() == pytest.approx(base, rel=1e-12)
    assert values(tuple(view * 7.5 for view in views))["loss"].item() == pytest.approx(base, rel=1e-12)


def test_every_term_of_the_settings_has_a_builder_or_an_equation():
    names = set(ObjectiveSettings.model_fields)
    assert names > TERMS.keys()
    for name in names - TERMS.keys():
        assert callable(getattr(importlib.import_module(f"cse.objectives.{name}"), name))


def test_cosines_are_float32_even_from_bfloat16(views):
    found = cosines(views[0].bfloat16(), views[1].bfloat16())
    assert found.dtype == torch.float32
    assert torch.allclose(found, cosines(*views[:2]).float(), atol=0.02)
