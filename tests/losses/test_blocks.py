"""Workers share the anchors of a contrastive loss: their parts add up, and each holds its own block of cosines."""

import pytest
import torch

from cse.losses.energy_hinge import energy_hinge
from cse.losses.group import Group
from cse.losses.matryoshka import matryoshka
from cse.losses.nt_xent import nt_xent, nt_xent_two_views
from cse.losses.shared import UNLABELLED, cosines
from cse.losses.supervised_contrastive import supervised_contrastive
from tests.training.helpers import kept_bytes

# of views, a queue, labels and the worker's own anchors
LOSSES = {
    "simcse": lambda z1, z2, z3, queue, label, own: nt_xent(
        cosines(z1[own], z2), cosines(z1[own], z3), temperature=0.2, hard_negative_weight=0.7,
        queue_AQ=cosines(z1[own], queue), first=own.start,
    ),
    "simclr": lambda z1, z2, z3, queue, label, own: nt_xent_two_views(z1, z2, temperature=0.2, anchors=own),
    "hinge": lambda z1, z2, z3, queue, label, own: energy_hinge(z1, z2, z3, margin=0.3, anchors=own),
    "nested": lambda z1, z2, z3, queue, label, own: matryoshka(
        z1, z2, z3, widths=[6, 3], temperature=0.2, anchors=own,
    ),
    "khosla": lambda z1, z2, z3, queue, label, own: supervised_contrastive(
        torch.cat([z1, z2]), label.repeat(2), 0.2, own,
    ),
}  # fmt: skip
ROWS, ANCHORS = 7, {"simclr": 14, "khosla": 14}


def rows_of(number: int, width: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    made = [torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (number, number, number, 3)]
    return [each.requires_grad_() for each in made]


def labels_of(number: int) -> torch.Tensor:
    label = torch.arange(number) % 3
    label[2] = UNLABELLED
    label[3] = 9  # of no other row
    return label


def value_and_gradients(loss, worker: Group):
    views = rows_of(ROWS)
    value = worker.over_blocks(ANCHORS.get(loss, ROWS), lambda own: LOSSES[loss](*views, labels_of(ROWS), own))
    return value, torch.autograd.grad(value, views, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("size", [2, 3, 7, 20])  # 20: more workers than rows, who all compute the whole
@pytest.mark.parametrize("loss", LOSSES)
def test_the_mean_over_workers_is_the_whole_loss(loss, size):
    whole, slopes = value_and_gradients(loss, Group(0, 1))
    found = [value_and_gradients(loss, Group(rank, size)) for rank in range(size)]
    torch.testing.assert_close(sum(value for value, _ in found) / size, whole, rtol=1e-12, atol=0)
    for number, expected in enumerate(slopes):
        mean = sum(gradients[number] for _, gradients in found) / size
        torch.testing.assert_close(mean, expected, rtol=1e-10, atol=1e-12)
    if size <= ROWS:
        assert len({round(value.item(), 9) for value, _ in found}) > 1, "the workers have blocks of their own"


def kept(loss, worker: Group, number: int) -> int:
    """Return the bytes that a worker keeps for the gradient of a batch's loss."""
    views, labels, rows = rows_of(number, width=4), labels_of(number), ANCHORS.get(loss, ROWS) * number // ROWS
    return kept_bytes(lambda: worker.over_blocks(rows, lambda own: LOSSES[loss](*views, labels, own)))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_worker_of_eight_holds_an_eighth_of_the_cosines(loss):
    alone, shared = (kept(loss, Group(size - 1, size), 448) for size in (1, 8))
    assert shared < alone / 8 * 1.2, f"{shared:,} of {alone:,} bytes"
