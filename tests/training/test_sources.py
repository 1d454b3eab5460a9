"""Several sources in one training: each batch has the loss of its source, and nothing else changes."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import pytest
import torch

from cse.losses.energy_hinge import energy_hinge
from cse.losses.masked_lm import MaskedLm
from cse.losses.nt_xent import nt_xent
from cse.losses.shared import cosines
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.mlm_head import load_mlm_head
from cse.settings.objective import MaskedLmSettings, ObjectiveSettings
from cse.settings.train import TrainSettings
from cse.training.losses import losses_from
from cse.training.observers import CsvLog, StepRecord
from tests.parts import Cut, new_plan
from tests.tiny import make_backbone_folder
from tests.training.helpers import embed_rows, make_problem, make_table

PLAN = new_plan(learning_rate=0.05, batch_size=8, epochs=2, cut=Cut(3, None), eval_every=4, save_seconds=0, seed=5)
PAIRS = {"energy_hinge": 0.0, "nt_xent": 0.5}
OWN = [{}, PAIRS]


def losses_over(encoder, own=OWN, **terms):
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


def test_a_term_may_train_another_source_alone(bert):
    """The main source holds pairs, so its hinge is off; the triplets beside it switch the hinge on."""
    encoder, _, triplets = make_problem(bert, dropout=0.0)
    own = [{"energy_hinge": 0.0}, {"energy_hinge": 3.0}]
    losses = losses_over(encoder, own, energy_hinge={"weight": 0.0})
    main = losses(embed_rows(encoder, make_table(bert, 30, "pairs"), [5, 2, 8], PLAN))
    other = losses(replace(embed_rows(encoder, triplets, [5, 2, 8], PLAN), source=1))
    assert list(main) == ["nt_xent", "loss"]
    assert other["loss"].item() == pytest.approx((other["nt_xent"] + 3 * other["energy_hinge"]).item(), rel=1e-6)
    assert other["energy_hinge"].item() > 0


def test_a_queue_takes_in_the_batches_of_its_own_sources(bert):
    encoder, _, table = make_problem(bert, dropout=0.0)
    off = {"nt_xent": 0.0}
    losses = losses_over(encoder, [{}, off], nt_xent={"queue": 20})
    queue = losses.terms["nt_xent"].queue
    for source, filled in ((0, 3), (1, 3), (0, 6)):
        losses.after_update(replace(embed_rows(encoder, table, [5, 2, 8], PLAN), source=source))
        assert int(queue.filled) == filled


def test_a_sources_own_weight_decays_too(tiny_folders, tmp_path):
    backbone = load_backbone(find_backbone(str(make_backbone_folder(tmp_path / "bert", "bert", head=True))))
    encoder, _, _ = make_problem(backbone)
    head = load_mlm_head(backbone, wanted_by="test")
    term = MaskedLm(encoder, MaskedLmSettings(weight=0.8, decay_rate=0.5), head, seed=1)
    assert [term.weight(step) for step in (0, 50, 100)] == pytest.approx([0.8, 0.8 * 0.5**0.5, 0.4], rel=1e-12)
    assert [term.weight(step, 0.2) for step in (0, 100)] == [0.2, 0.1]


def test_the_log_leaves_out_what_a_batch_has_not(bert, tmp_path):
    log = CsvLog(tmp_path)
    log.start(0, 10)
    encoder, _, _ = make_problem(bert)
    losses = losses_over(encoder)
    for step, values in ((5, {"nt_xent": 0.25, "loss": 0.125}), (10, {"nt_xent": 1, "energy_hinge": 2.0, "loss": 21})):
        record = StepRecord(step, 10, losses.record(values), 0.01, 1.0, 1.0, None)
        assert record.known == values
        log.step(record)
    with (tmp_path / "train.csv").open(encoding="utf-8") as stream:
        assert list(csv.reader(stream)) == [
            ["step", "nt_xent", "energy_hinge", "loss", "learning_rate"],
            ["5", "0.25", "", "0.125", "0.01"],
            ["10", "1", "2", "21", "0.01"],
        ]
    assert math.isnan(losses.record({})["nt_xent"])
