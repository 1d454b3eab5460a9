"""What each step of the loop is given, and what it tells."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cse.errors import CseError
from cse.losses.shared import Batch
from cse.training.batches import Batches, RowOrder
from cse.training.losses import Losses
from cse.training.state import RunFolder
from tests.parts import Cut, new_plan, replan, train
from tests.training.helpers import Recorder, losses_of, make_problem

ROWS, STEPS = 21, 6
PLAN = new_plan(learning_rate=0.05, batch_size=8, epochs=2, cut=Cut(3, None), eval_every=4, warmup_share=0.5, seed=5)


class Spy(Losses):
    """The usual loss, which notes what it is given; from some step on it is no number."""

    def __init__(self, encoder, broken_from: int = 1000) -> None:
        super().__init__(losses_of(encoder).terms)
        self.batches: list[Batch] = []
        self.bf16: set[bool] = set()
        self.broken_from = broken_from

    def forward(self, batch):
        self.batches.append(batch)
        self.bf16.add(torch.is_autocast_enabled("cpu"))
        terms = super().forward(batch)
        return terms | {"loss": terms["loss"] * float("nan")} if batch.step >= self.broken_from else terms


def run(backbone, folder, plan=PLAN, dev=None, recorder=None, broken_from=1000):
    encoder, _, table = make_problem(backbone, rows=ROWS)
    losses, recorder = Spy(encoder, broken_from), recorder or Recorder()
    train(encoder, losses, table, plan, dev=dev, folder=RunFolder(folder), observer=recorder)
    return losses, recorder, table


@pytest.mark.parametrize("bf16", [False, True])
def test_every_step_gets_its_rows_its_number_and_its_precision(bert, tmp_path, bf16):
    losses, _, _ = run(bert, tmp_path, replan(PLAN, bf16=bf16))
    assert [(batch.step, batch.epoch) for batch in losses.batches] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    for batch in losses.batches:
        expected = Batches(RowOrder(ROWS), batch_size=8, epochs=2, seed=5).at(batch.step)[1]
        assert np.array_equal(batch.rows, expected)
        assert len(batch.slices) == 3
    assert losses.bf16 == {bf16}


@pytest.mark.parametrize(("most", "steps"), [(4, 4), (9, STEPS)])
def test_the_most_steps_end_a_run_and_its_schedule(bert, tmp_path, most, steps):
    plan = replan(PLAN, max_steps=most, warmup_share=0.0, eval_every=10)
    losses, recorder, _ = run(bert, tmp_path, plan, dev=lambda: 1.0)
    assert [batch.step for batch in losses.batches] == list(range(steps))
    last = recorder.records[-1]
    assert (last.step, last.steps) == (steps, steps)
    assert last.learning_rate == pytest.approx(plan.train.learning_rate / steps)


def test_records_tell_learning_rate_and_speed(bert, tmp_path):
    losses, recorder, table = run(bert, tmp_path, dev=lambda: 7.0)
    assert [(record.step, record.steps, record.dev_score) for record in recorder.records] == [(5, 6, 7.0), (6, 6, 7.0)]
    assert [record.learning_rate for record in recorder.records] == [0.05 * PLAN.factor(step, STEPS) for step in (4, 5)]
    bests = [best for _, _, best in recorder.scores]
    assert bests == [True] + [False] * (len(bests) - 1), "a draw is no gain"
    # the first record is of the step behind the evaluation of step 4: what an evaluation takes is no training
    for record, batch in zip(recorder.records, losses.batches[4:], strict=True):
        tokens = sum(int(column.lengths[batch.rows].sum()) for column in table.columns)
        speed = record.tokens_per_second / record.sentences_per_second
        assert speed == pytest.approx(tokens / (3 * len(batch.rows)), rel=1e-9)
    assert recorder.records[0].terms.keys() == {"nt_xent", "energy_hinge", "loss"}


def test_a_loss_that_is_no_number_is_never_scored(bert, tmp_path):
    """The fourth step ends in an evaluation before the next record: its loss is looked at first."""
    recorder = Recorder()
    with pytest.raises(CseError, match=r"^train\.learning_rate: the loss is nan at step 4; lower it \(now 0\.05\)"):
        run(bert, tmp_path, dev=lambda: 1.0, recorder=recorder, broken_from=3)
    assert [step for step, _, _ in recorder.scores if step >= 4] == []
    assert recorder.closed == 1
