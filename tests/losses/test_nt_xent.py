"""NT-Xent in all its forms, the hinge and the cross-entropy over a collection against numpy in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from cse.losses.collection import NO_DOCUMENT, collection_cross_entropy, sampled_cross_entropy
from cse.losses.energy_hinge import energy_hinge
from cse.losses.group import ALONE
from cse.losses.nt_xent import nt_xent, nt_xent_two_views
from cse.losses.shared import cosines
from tests.training.helpers import losses_of

ROWS, WIDTH, QUEUE = 6, 5, 3


@pytest.fixture
def vectors() -> tuple[torch.Tensor, ...]:
    """Anchors, positives, hard negatives and a queue."""
    return tuple(torch.randn(rows, WIDTH, dtype=torch.float64) for rows in (ROWS, ROWS, ROWS, QUEUE))


@pytest.fixture
def views(vectors) -> tuple[torch.Tensor, ...]:
    return vectors[:3]


def values(views: tuple[torch.Tensor, ...], **terms: dict) -> dict[str, torch.Tensor]:
    """What the losses of these settings make of the views of a batch."""
    return losses_of(None, **terms)(
        SimpleNamespace(views=views, projected_XD=views[0], rows=range(len(views[0])), group=ALONE, step=0, source=0)
    )


def unit(z: torch.Tensor) -> np.ndarray:
    return z.numpy() / np.linalg.norm(z.numpy(), axis=1, keepdims=True)


def reference_nt_xent(z1, z2, z3=None, queue=None, *, temperature, weight=0.0) -> float:
    logits = [unit(z1) @ unit(z).T / temperature for z in (z2, z3, queue) if z is not None]
    if z3 is not None:
        logits[1] += weight * np.eye(len(z1))
    return -np.diag(log_softmax(np.hstack(logits), axis=1)).mean()


def reference_two_views(z1, z2, *, temperature) -> float:
    rows = unit(torch.cat([z1, z2]))
    logits = rows @ rows.T / temperature
    np.fill_diagonal(logits, -np.inf)
    logs = log_softmax(logits, axis=1)
    return -np.mean([logs[i, (i + len(z1)) % len(rows)] for i in range(len(rows))])


def reference_hinge(z1, z2, z3, *, margin) -> float:
    near, far = unit(z1) @ unit(z2).T, unit(z1) @ unit(z3).T
    hardest = [max(*np.delete(near[i], i), *far[i]) for i in range(len(z1))]
    return np.maximum(0.0, margin + np.array(hardest) - np.diag(near)).mean()


@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("weight", [0.0, 1.0, -0.7])
@pytest.mark.parametrize(("triplets", "queued"), [(False, False), (True, False), (False, True), (True, True)])
def test_nt_xent(vectors, temperature, weight, triplets, queued):
    z1, z2, z3, queue = vectors
    found = nt_xent(
        cosines(z1, z2), cosines(z1, z3) if triplets else None, temperature=temperature, hard_negative_weight=weight,
        queue_AQ=cosines(z1, queue) if queued else None,
    )  # fmt: skip
    given = z1, z2, z3 if triplets else None, queue if queued else None
    assert found.item() == pytest.approx(reference_nt_xent(*given, temperature=temperature, weight=weight), abs=1e-10)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_two_views(views, temperature):
    expected = reference_two_views(*views[:2], temperature=temperature)
    assert nt_xent_two_views(*views[:2], temperature=temperature).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("margin", [0.0, 0.2, 1.0])
def test_energy_hinge_is_that_by_hand_and_zero_where_every_positive_wins_by_the_margin(views, margin):
    expected = reference_hinge(*views, margin=margin)
    assert expected > 0
    assert energy_hinge(*views, margin=margin).item() == pytest.approx(expected, abs=1e-10)
    z1 = torch.eye(4, dtype=torch.float64)
    assert energy_hinge(z1, z1, -z1, margin=margin).item() == 0.0


@pytest.mark.parametrize(
    ("of_nt_xent", "of_hinge", "temperature", "weight", "margin"),
    [({}, {}, 0.05, 0.0, 0.2), ({"temperature": 0.3, "hard_negative_weight": 0.7}, {"margin": 0.5}, 0.3, 0.7, 0.5)],
)
def test_settings_and_defaults_reach_every_term(views, of_nt_xent, of_hinge, temperature, weight, margin):
    terms = values(views, nt_xent={"weight": 0.5} | of_nt_xent, energy_hinge=of_hinge)
    expected = reference_nt_xent(*views, temperature=temperature, weight=weight)
    hinge = reference_hinge(*views, margin=margin)
    assert list(terms) == ["nt_xent", "energy_hinge", "loss"]
    assert terms["nt_xent"].item() == pytest.approx(expected, abs=1e-10)
    assert terms["energy_hinge"].item() == pytest.approx(hinge, abs=1e-10)
    assert terms["loss"].item() == pytest.approx(0.5 * expected + 10 * hinge, rel=1e-10)
    pairs = values(views[:2], nt_xent=of_nt_xent, energy_hinge={"weight": 0.0})
    assert list(pairs) == ["nt_xent", "loss"], "a loss without weight is computed"
    assert pairs["loss"].item() == pytest.approx(reference_nt_xent(*views[:2], temperature=temperature), abs=1e-10)


@pytest.mark.parametrize("width", [2, 4])
def test_matryoshka_is_nt_xent_of_the_first_numbers(views, width):
    terms = {"nt_xent": {"weight": 0.0}, "energy_hinge": {"weight": 0.0}}
    found = values(views, matryoshka={"weight": 1.0, "widths": [width, 3]}, **terms)
    assert list(found) == ["matryoshka", "loss"], "a loss without weight is computed"
    expected = [reference_nt_xent(*(z[:, :w] for z in views), temperature=0.05) for w in (width, 3)]
    assert found["matryoshka"].item() == pytest.approx(sum(expected) / 2, abs=1e-10)


RNG = np.random.default_rng(0)
QUERIES, DOCUMENTS = RNG.normal(size=(4, 6)), RNG.normal(size=(9, 6))
PLACE = np.array([[0, 3, 8], [1, 2, 4], [8, 7, 6], [5, 0, 1]])
SHARE = RNG.dirichlet(np.ones(3), size=4)
OWN = np.array([2, NO_DOCUMENT, 0, 8])


def tensors(place=PLACE, share=SHARE):
    return tuple(map(torch.from_numpy, (QUERIES, DOCUMENTS, place, share, OWN)))


def found(*given):
    return collection_cross_entropy(*tensors(*given), temperature=0.3).item()


def test_it_is_the_cross_entropy_over_all_documents_but_the_own():
    """For which a share of zero adds nothing."""
    queries, documents = (unit(torch.from_numpy(values)) for values in (QUERIES, DOCUMENTS))
    losses = []
    for row, own in enumerate(OWN):
        candidates = [place for place in range(len(DOCUMENTS)) if place != own]
        logs = dict(zip(candidates, log_softmax(queries[row] @ documents[candidates].T / 0.3), strict=True))
        losses.append(-sum(share * logs[place] for share, place in zip(SHARE[row], PLACE[row], strict=True)))
    assert found() == pytest.approx(np.mean(losses), rel=1e-12)
    with_own = np.column_stack([PLACE, np.maximum(OWN, 0)]), np.column_stack([SHARE, np.zeros(4)])
    assert found(*with_own) == pytest.approx(found(), rel=1e-12)


@pytest.mark.parametrize("size", [9, 0])
def test_a_sample_of_all_documents_and_of_none_is_the_whole_collection(size):
    sampled = sampled_cross_entropy(*tensors(), torch.arange(size), temperature=0.3)
    assert sampled.item() == pytest.approx(found(), rel=1e-12)


def test_a_step_reads_the_documents_it_ranks_alone():
    """All others are not a number; those of the sample stand for 958 that no query needs."""
    place, own = torch.arange(40).reshape(4, 10), torch.tensor([50, NO_DOCUMENT, 3, 51])
    sample, needed = torch.arange(0, 1000, 10), [*range(40), 50, 51]
    ranked = torch.tensor([*needed, *(number for number in sample.tolist() if number not in needed)])
    documents = torch.full((1000, 6), torch.nan)
    documents[ranked] = torch.randn(len(ranked), 6, generator=torch.Generator().manual_seed(0))
    share, queries = torch.full((4, 10), 0.1), torch.from_numpy(QUERIES).float()
    found = sampled_cross_entropy(queries, documents, place, share, own, sample, temperature=0.3)
    logits = cosines(queries, documents[ranked]) / 0.3
    logits[:, 42:] += np.log(958 / (len(ranked) - 42))
    for row in (0, 2, 3):
        logits[row, ranked == own[row]] = -torch.inf
    assert found.item() == pytest.approx(-logits.log_softmax(dim=1).gather(1, place).mean().item(), rel=1e-5)
