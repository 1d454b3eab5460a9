"""A share of the initial weights: what is scored and saved, and that a killed run takes it up."""

from __future__ import annotations

import pytest
import torch

from cse.errors import Interrupted
from cse.training.state import RunFolder
from tests.parts import replan, train
from tests.training.helpers import Recorder, Stop, make_problem
from tests.training.test_loop import PLAN, run

MIXED = replan(PLAN, start_share=0.3)


def copies(encoder) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in encoder.trainable().items()}


def test_the_initial_weights_have_their_share_in_what_is_scored_and_kept(bert, tmp_path):
    start = copies(make_problem(bert)[0])
    plain, _, _ = run(bert, tmp_path / "plain")
    encoder, losses, table = make_problem(bert)
    seen = []

    def dev():
        seen.append(copies(encoder))
        return float(len(seen))

    train(encoder, losses, table, MIXED, dev=dev, folder=RunFolder(tmp_path / "own"), observer=Recorder())
    without_dev, _, _ = run(bert, tmp_path / "blind", MIXED)
    (name,) = start
    expected = 0.3 * start[name] + 0.7 * copies(plain)[name]
    torch.testing.assert_close(copies(encoder)[name], expected)
    assert torch.equal(copies(encoder)[name], seen[-1][name])
    assert torch.equal(seen[0][name], start[name])
    assert torch.equal(copies(encoder)[name], copies(without_dev)[name])


def test_a_stopped_run_takes_up_its_share(bert, tmp_path):
    whole, _, _ = run(bert, tmp_path / "whole", MIXED)
    encoder, losses, table = make_problem(bert)
    with pytest.raises(Interrupted):
        train(encoder, losses, table, MIXED, dev=None, folder=RunFolder(tmp_path / "cut"), observer=Stop())
    again, _, recorder = run(bert, tmp_path / "cut", MIXED)
    assert recorder.starts == [(5, 10)]
    (name,) = copies(whole)
    assert torch.equal(copies(again)[name], copies(whole)[name])
    ended, _, _ = run(bert, tmp_path / "cut", MIXED)
    assert torch.equal(copies(ended)[name], copies(whole)[name]), "running an ended training again changed its weights"
