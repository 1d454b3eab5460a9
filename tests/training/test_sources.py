"""Several sources in one training: each batch has the loss of its source, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import torch

from cse.losses.energy_hinge import energy_hinge
from cse.losses.nt_xent import nt_xent
from cse.losses.shared import cosines
from cse.settings.objective import ObjectiveSettings
from cse.settings.train import TrainSettings
from cse.training.losses import losses_from
from tests.parts import Cut, new_plan
from tests.training.helpers import embed_rows, make_problem, make_table

PLAN = new_plan(learning_rate=0.05, batch_size=8, epochs=2, cut=Cut(3, None), eval_every=4, save_seconds=0, seed=5)
PAIRS = {"energy_hinge": 0.0, "nt_xent": 0.5}


def losses_over(encoder, own=({}, PAIRS), **terms):
    """NT-Xent and the hinge with the default weights, 1 and 10, unless given."""
    objective = ObjectiveSettings(**terms).over(own[1:])
    return losses_from(objective, encoder, TrainSettings(), None, own=own)


def gradient_of(encoder, loss):
    encoder.zero_grad()
    loss.backward()
    return encoder.prompt.table.grad.clone()


def test_each_batch_has_the_gradient_of_its_sources_loss(bert):
    encoder, _, triplets = make_problem(bert, dropout=0.0)
    pairs = make_table(bert, 30, "pairs")
    losses = losses_over(encoder)
    for table, source, rows in ((triplets, 0, [3, 17, 0, 9, 31]), (pairs, 1, [5, 2, 8])):
        batch = replace(embed_rows(encoder, table, rows, PLAN), source=source)
        found = losses(batch)
        mixed = gradient_of(encoder, found["loss"])
        anchor, positive, *rest = embed_rows(encoder, table, rows, PLAN).views
        near = cosines(anchor, positive)
        if source == 0:
            (negative,) = rest
            expected = nt_xent(near, cosines(anchor, negative), temperature=0.05)
            expected = expected + 10 * energy_hinge(anchor, positive, negative, margin=0.2)
        else:
            assert rest == []
            expected = 0.5 * nt_xent(near, None, temperature=0.05)
        assert list(found) == (["nt_xent", "energy_hinge", "loss"] if source == 0 else ["nt_xent", "loss"])
        torch.testing.assert_close(mixed, gradient_of(encoder, expected), rtol=1e-5, atol=1e-7)
        assert mixed.abs().max() > 1e-4


def test_a_queue_takes_in_the_batches_of_its_own_sources(bert):
    encoder, _, table = make_problem(bert, dropout=0.0)
    off = {"nt_xent": 0.0}
    losses = losses_over(encoder, [{}, off], nt_xent={"queue": 20})
    queue = losses.terms["nt_xent"].queue
    for source, filled in ((0, 3), (1, 3), (0, 6)):
        losses.after_update(replace(embed_rows(encoder, table, [5, 2, 8], PLAN), source=source))
        assert int(queue.filled) == filled
