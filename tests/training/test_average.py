"""Averages with earlier weights: what is scored and saved, and that a killed run takes it up."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
import torch

from cse.errors import Interrupted
from cse.training.average import WeightAverage
from cse.training.loop import train
from cse.training.state import RunFolder
from tests.training.helpers import Recorder, make_problem
from tests.training.test_loop import PLAN, run

AVERAGED = replace(PLAN, average=0.8)


def copies(encoder) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in encoder.trainable().items()}


def test_the_first_steps_weigh_more():
    weight = torch.zeros(1)
    average = WeightAverage({"a": weight}, 0.5)
    expected = 0.0
    for step, value in enumerate((1.0, 5.0, -2.0, 7.0, 4.0, 1.0, 8.0, 3.0, 2.0, 6.0), start=1):
        weight.fill_(value)
        average.update(step)
        keep = min(0.5, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * value
    assert (1 + 10) / (10 + 10) > 0.5 > (1 + 1) / (10 + 1)
    assert average.values["a"].item() == pytest.approx(expected)
    with average.in_place():
        assert weight.item() == pytest.approx(expected)
    assert weight.item() == 6.0


def test_the_average_is_scored_and_kept_while_the_weights_train_on(bert, tmp_path):
    plain, _, _ = run(bert, tmp_path / "plain", replace(PLAN, eval_every=1))
    encoder, losses, table = make_problem(bert)
    path, seen = [copies(encoder)], []

    class Watch(Recorder):
        def step(self, record):
            super().step(record)
            path.append(copies(encoder))

    def dev():
        seen.append(copies(encoder))
        return float(len(seen))

    plan = replace(AVERAGED, eval_every=5)  # every fifth step is recorded: at its end the loop's own weights stand
    train(encoder, losses, table, plan, dev=dev, folder=RunFolder(tmp_path / "own"), observer=Watch())
    (name,) = path[0]
    assert torch.equal(path[-1][name], copies(plain)[name]), "the average changed the training"
    assert torch.equal(copies(encoder)[name], seen[-1][name]), "the last and best average is not what was kept"
    apart = (seen[-1][name] - path[-1][name]).norm() / (path[-1][name] - path[0][name]).norm()
    assert 0.01 < apart < 1


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_the_initial_weights_have_their_share_in_what_is_scored_and_kept(bert, tmp_path, share):
    start = copies(make_problem(bert)[0])
    plain, _, _ = run(bert, tmp_path / "plain", replace(PLAN, average=share))
    encoder, losses, table = make_problem(bert)
    seen = []

    def dev():
        seen.append(copies(encoder))
        return float(len(seen))

    plan = replace(PLAN, average=share, start_share=0.3)
    train(encoder, losses, table, plan, dev=dev, folder=RunFolder(tmp_path / "own"), observer=Recorder())
    without_dev, _, _ = run(bert, tmp_path / "blind", plan)
    (name,) = start
    expected = 0.3 * start[name] + 0.7 * copies(plain)[name]
    torch.testing.assert_close(copies(encoder)[name], expected)
    assert torch.equal(copies(encoder)[name], seen[-1][name])
    assert torch.equal(seen[0][name], start[name])
    assert torch.equal(copies(encoder)[name], copies(without_dev)[name])


def test_without_dev_pairs_the_average_is_kept(bert, tmp_path):
    plain, plain_state, _ = run(bert, tmp_path / "plain")
    encoder, state, _ = run(bert, tmp_path / "own", AVERAGED)
    (name,) = copies(encoder)
    assert torch.equal(copies(encoder)[name], state.average[name])
    assert torch.equal(state.weights[name], plain_state.weights[name])
    assert not torch.equal(copies(encoder)[name], copies(plain)[name])


@pytest.mark.parametrize("plan", [AVERAGED, replace(PLAN, start_share=0.3), replace(AVERAGED, start_share=0.3)])
def test_a_stopped_run_takes_up_its_average(bert, tmp_path, plan):
    whole, _, _ = run(bert, tmp_path / "whole", plan)

    class Stop(Recorder):
        def step(self, record):
            super().step(record)
            signal.raise_signal(signal.SIGTERM)

    encoder, losses, table = make_problem(bert)
    with pytest.raises(Interrupted):
        train(encoder, losses, table, plan, dev=None, folder=RunFolder(tmp_path / "cut"), observer=Stop())
    again, _, recorder = run(bert, tmp_path / "cut", plan)
    assert recorder.starts == [(5, 10)]
    (name,) = copies(whole)
    assert torch.equal(copies(again)[name], copies(whole)[name])
    ended, _, _ = run(bert, tmp_path / "cut", plan)
    assert torch.equal(copies(ended)[name], copies(whole)[name]), "running an ended training again changed its weights"
