"""Every loss: its gradient is the numeric one, what it leaves out, and float32 or better, whatever autocast says.

Of those that workers share, parts add up, and each worker holds its own block of cosines. Values: ``test_nt_xent``, and
``tests/training/test_terms`` of those with passes or weights.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from cse.losses.collection import NO_DOCUMENT, collection_cross_entropy
from cse.losses.contrastive_tension import contrastive_tension
from cse.losses.distillation import similarity_divergence
from cse.losses.energy_hinge import energy_hinge
from cse.losses.group import Group
from cse.losses.label_proxies import label_proxies
from cse.losses.masked_lm import masked_lm
from cse.losses.matryoshka import matryoshka
from cse.losses.mutual_information import local_global_information
from cse.losses.nli_softmax import nli_softmax, pair_features
from cse.losses.nt_xent import nt_xent, nt_xent_two_views
from cse.losses.replaced_tokens import replaced_tokens
from cse.losses.self_guided import self_guided, squared_distance
from cse.losses.shared import UNLABELLED, cosines
from cse.losses.supervised_contrastive import supervised_contrastive
from tests.training.helpers import kept_bytes

GENERATOR = torch.Generator().manual_seed(11)
FIRST, SECOND = (torch.randn(8, 16, generator=GENERATOR) for _ in range(2))
MASK = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0]])
LABELS = torch.arange(8) % 3
PARTLY = torch.tensor([0, 1, 0, UNLABELLED, 2, 1, 0, UNLABELLED])  # the 2 is alone
REAL = torch.arange(8) < torch.tensor([8, 3, 5, 0, 1, 8, 2, 6])[:, None]  # the fourth row is padding alone
REPLACED = torch.arange(64).view(8, 8) % 3 == 0  # some at padding, which must not count


def detection(normalize: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total, count = replaced_tokens((a * b).view(8, 8, 2), REPLACED, REAL, normalize=normalize)
    return total / count


# each takes two (8, 16) tensors of any precision
LOSSES = {
    "nt_xent": lambda a, b: nt_xent(
        cosines(a, b), cosines(a, b.flip(0)), temperature=0.05, hard_negative_weight=0.7,
        queue_AQ=cosines(a, b[:3] - a[:3]),
    ),
    "energy_hinge": lambda a, b: energy_hinge(a, a + b, b, margin=1.0),
    "matryoshka": lambda a, b: matryoshka(a, b, a - b, widths=[8, 3], temperature=0.05),
    "masked_lm": lambda a, b: masked_lm(a * b, LABELS),
    **{f"replaced_tokens_{how}": partial(detection, how) for how in ("positions", "tokens", "sum")},
    "contrastive_tension": lambda a, b: contrastive_tension(a, b, group=4),
    "mutual_information": lambda a, b: local_global_information(a.view(4, 2, 16), b[:4], MASK),
    "self_guided": lambda a, b: self_guided(a[:4], b.view(2, 4, 16), temperature=0.05),
    "squared_distance": lambda a, b: squared_distance([a, b], [b, a]),
    "pair_features": lambda a, b: pair_features(a, b).sum(),
    "nli_softmax": lambda a, b: nli_softmax((a * b)[:, :3], LABELS),
    "label_proxies": lambda a, b: label_proxies(a, b[:3], PARTLY, temperature=0.05),
    "supervised_contrastive": lambda a, b: supervised_contrastive(a + b, PARTLY, 0.05),
    "collection": lambda a, b: collection_cross_entropy(
        a, b, torch.stack([LABELS, LABELS + 5], dim=1), torch.tensor([0.3, 0.7]).expand(8, 2),
        torch.where(LABELS > 0, 3 + LABELS, NO_DOCUMENT), temperature=0.05,
    ),
    "similarity_divergence": lambda a, b: similarity_divergence(a, b, rows=4, temperature=0.05),
    "nt_xent_two_views": lambda a, b: nt_xent_two_views(a, b, temperature=0.05),
}  # fmt: skip
NONE = torch.zeros_like(REAL)
# of rows that have nothing to learn from: no other row, no label, no positive, no token
NOTHING = {
    "nt_xent_two_views": lambda a, b: nt_xent_two_views(a[:1], b[:1].detach(), temperature=0.05),
    "similarity_divergence": lambda a, b: similarity_divergence(a[:3], b[:3].detach(), rows=1, temperature=0.05),
    "label_proxies": lambda a, b: label_proxies(a, b[:3].detach(), torch.full((8,), UNLABELLED), temperature=0.1),
    "supervised_contrastive": lambda a, b: supervised_contrastive(a, torch.arange(8), 0.2),
    "self_guided": lambda a, b: self_guided(a[:1], b[:3, None], temperature=0.01),
    "mutual_information": lambda a, b: local_global_information(a.view(4, 2, 16)[:1], b[:1], MASK[:1]),
    "mutual_information of no row": lambda a, b: local_global_information(a.view(4, 2, 16)[:0], b[:0], MASK[:0]),
    "replaced_tokens_tokens": lambda a, b: replaced_tokens(a.view(8, 8, 2), REPLACED, NONE, normalize="tokens")[0],
    "replaced_tokens_sum": lambda a, b: replaced_tokens(a.view(8, 8, 2), REPLACED, NONE, normalize="sum")[0],
    "squared_distance": lambda a, b: squared_distance([a], [a.detach()]),
    "masked_lm": lambda a, b: masked_lm(a[:0], LABELS[:0]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_equals_finite_differences(name):
    inputs = FIRST.double().requires_grad_(), SECOND.double().requires_grad_()
    assert torch.autograd.gradcheck(LOSSES[name], inputs)
    (slope, *_) = torch.autograd.grad(LOSSES[name](*inputs), inputs, allow_unused=True)
    assert slope.abs().max() > 1e-6


@pytest.mark.parametrize("name", NOTHING)
def test_where_nothing_is_to_be_learned_the_loss_is_zero_with_zero_gradient(name):
    inputs = FIRST.double().requires_grad_(), SECOND.double().requires_grad_()
    loss = NOTHING[name](*inputs)
    loss.backward()
    assert loss.item() == 0.0
    assert not any(each.grad.any() for each in inputs if each.grad is not None) and inputs[0].grad is not None


@pytest.mark.parametrize("normalize", ["tokens", "sum"])
def test_what_stands_at_padding_does_not_matter_to_detection(normalize):
    logits, rest = FIRST.double().view(8, 8, 2), REAL.any(dim=1)
    found = replaced_tokens(logits, REPLACED, REAL, normalize=normalize)
    expected = replaced_tokens(logits[rest], (REPLACED & REAL)[rest], REAL[rest], normalize=normalize)
    torch.testing.assert_close(found, expected)


def test_what_stands_at_padding_does_not_matter_to_mutual_information():
    """A row of padding alone is no sentence: the mean of no tokens is not a number."""
    rest = REAL.any(dim=1)
    local = FIRST.double().view(8, 8, 2).masked_fill(~REAL[..., None], float("nan")).requires_grad_()
    sentences = SECOND[:, :2].double().masked_fill(~rest[:, None], float("nan")).requires_grad_()
    loss = local_global_information(local, sentences, REAL.long())
    kept = local.detach().nan_to_num()[rest], sentences.detach()[rest], REAL[rest].long()
    assert loss.item() == pytest.approx(local_global_information(*kept).item(), rel=1e-12)
    loss.backward()
    assert torch.equal(local.grad.abs().amin(dim=-1) > 0, REAL)
    assert torch.isfinite(sentences.grad).all()


@pytest.mark.parametrize("score", [21.0, 500.0])
def test_large_scores_are_exact(score):
    """Torch's softplus returns its argument above 20; two tokens that are all wrong cost a little more than that."""
    local = torch.eye(2, dtype=torch.float64)[:, None, :]
    sentences = torch.tensor([[-score, score], [score, -score]], dtype=torch.float64)
    found = local_global_information(local, sentences, torch.ones(2, 1)).item()
    assert found - 2 * score == pytest.approx(2 * math.log1p(math.exp(-score)), abs=1e-12)
    assert torch.isfinite(contrastive_tension(score * FIRST, score * SECOND, group=4))


def test_supervised_contrastive_equals_numpy():
    """Each other text of the label is a positive, and all other texts are negatives."""
    unit = (FIRST.double() / FIRST.double().norm(dim=1, keepdim=True)).numpy()
    losses = []
    for row, label in enumerate(PARTLY.tolist()):
        others = [other for other in range(8) if other != row]
        positives = [other for other in others if PARTLY[other] == label != UNLABELLED]
        logits = unit @ unit[row] / 0.2
        if positives:
            losses.append(-np.mean([logits[p] - logsumexp(logits[others]) for p in positives]))
    assert len(losses) == 5
    assert supervised_contrastive(FIRST.double(), PARTLY, 0.2).item() == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_raised_to_float32(name, half):
    first, second = FIRST.to(half).requires_grad_(), SECOND.to(half)
    found = LOSSES[name](first, second)
    found.backward()
    assert found.dtype == torch.float32
    assert first.grad.dtype == half


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_changes_no_bit(name):
    plain = LOSSES[name](FIRST, SECOND)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (FIRST @ SECOND.T).dtype == torch.bfloat16
        found = LOSSES[name](FIRST, SECOND)
    assert torch.equal(found, plain)


# Workers share the anchors of a contrastive loss. Of views, a queue, labels and the worker's own anchors:
SHARED = {
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


def views_of(rows: int, width: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    made = [torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (rows, rows, rows, 3)]
    return [each.requires_grad_() for each in made]


def part_of(worker: Group, loss: str, views: list[torch.Tensor]) -> torch.Tensor:
    """What a worker computes of the loss."""
    rows = len(views[0])
    label = torch.arange(rows) % 3
    label[2], label[3] = UNLABELLED, 9  # which no other row has
    anchors = 2 * rows if loss in ("simclr", "khosla") else rows
    return worker.over_blocks(anchors, lambda own: SHARED[loss](*views, label, own))


@pytest.mark.parametrize("size", [2, 3, 7, 20])  # 20: more workers than rows, who all compute the whole
@pytest.mark.parametrize("loss", SHARED)
def test_the_mean_over_workers_is_the_whole_loss(loss, size):
    def value_and_gradients(worker):
        value = part_of(worker, loss, views := views_of(7))
        return value, *torch.autograd.grad(value, views, allow_unused=True, materialize_grads=True)

    whole = value_and_gradients(Group(0, 1))
    found = [value_and_gradients(Group(rank, size)) for rank in range(size)]
    for number, expected in enumerate(whole):
        mean = sum(parts[number] for parts in found) / size
        torch.testing.assert_close(mean, expected, rtol=1e-10, atol=1e-12)
    if size <= 7:
        assert len({round(value.item(), 9) for value, *_ in found}) > 1, "the workers have blocks of their own"


@pytest.mark.parametrize("loss", SHARED)
def test_a_worker_of_eight_holds_an_eighth_of_the_cosines(loss):
    views = views_of(448, width=4)
    alone, shared = (kept_bytes(lambda: part_of(Group(size - 1, size), loss, views)) for size in (1, 8))  # noqa: B023
    assert shared < alone / 8 * 1.2, f"{shared:,} of {alone:,} bytes"
