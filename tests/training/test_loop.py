"""The loop: what it trains, what it keeps, and that a run cut short ends as if nothing had happened."""

import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from cse.errors import CseError, Interrupted
from cse.evaluation.measures import NotFinite, UndefinedScore
from cse.losses.energy_hinge import energy_hinge
from cse.losses.nt_xent import nt_xent
from cse.losses.shared import cosines
from cse.settings.objective import ObjectiveSettings
from cse.settings.train import TrainSettings
from cse.training.batches import Batches, RowOrder
from cse.training.losses import Losses, losses_from
from tests.gpu.base import CPU, fit
from tests.parts import Cut, Plan, backbone_of, new_plan, new_prompt, replan, sentence_encoder
from tests.training.helpers import (
    Recorder,
    Stop,
    copies,
    embed_rows,
    losses_of,
    make_problem,
    make_table,
    replaced_tokens_term,
)  # fmt: skip
from tests.training.systems import swap_some

PLAN = new_plan(learning_rate=0.05, batch_size=8, epochs=2, cut=Cut(3, None), eval_every=3, save_seconds=0, seed=5)
MIXED = replan(PLAN, start_share=0.3)


def run(backbone, folder: Path, plan: Plan = PLAN, dev=None, problem=None, recorder=None):
    return fit(problem or make_problem(backbone), plan, folder, CPU, recorder, dev=dev)


def make_composition(backbone, rows: int = 40):
    """Queue, replaced tokens against a trained copy, and a batch-norm projector: all that a resumed run must hold."""
    table = make_table(backbone, rows, "sentences")
    torch.manual_seed(11)
    prompt = new_prompt("key_value", backbone, length=4, dropout=0.1, init_std=0.02)
    encoder = sentence_encoder(backbone, prompt, pooler="cls", mlp="train_only", projector="batch_norm")
    term = replaced_tokens_term(encoder, swap_some, discriminator="copy", copy_learning_rate=1e-3)
    nt_xent = losses_of(encoder, nt_xent={"queue": 20, "queue_projector": "following"}).terms["nt_xent"]
    return encoder, Losses({"nt_xent": nt_xent, "replaced_tokens": term}), table


def test_the_learning_rate_follows_its_schedule():
    def factors(steps, at=None, **settings):
        plan = new_plan(learning_rate=1.0, batch_size=2, **settings)
        return pytest.approx([plan.factor(step, steps) for step in at or range(steps)])

    assert factors(10, warmup_share=0.2) == [0.5, 1.0, *(1 - i / 8 for i in range(8))]
    assert factors(4) == [1.0, 0.75, 0.5, 0.25]
    assert factors(8, schedule="constant", warmup_share=0.25) == [0.5, *[1.0] * 7]
    at = (0, 499, 500, 999, 1000, 1500, 2000, 9000)
    assert factors(10_000, at, schedule="staircase") == [1, 1, 0.8, 0.8, 0.6, 0.4, 0.2, 0.2]


def test_a_run_that_stopped_early_does_not_train_on_when_it_is_started_again(bert, tmp_path):
    """Killed between its last save and the end of the stage: its folder is still there."""
    plan, scores = replan(PLAN, early_stop=2, epochs=4), [3.0, 2.0, 4.0, 3.0, 4.0, 9.0]
    first, state, _ = run(bert, tmp_path, plan, dev=lambda: scores.pop(0))
    again, same, recorder = run(bert, tmp_path, plan, dev=lambda: scores.pop(0))
    assert scores == [9.0]
    assert (state.step, same.step, same.best_step) == (12, 12, 6)
    assert (recorder.starts, recorder.records, recorder.scores) == ([(12, 20)], [], [])
    assert same.evaluations == state.evaluations
    assert torch.equal(first.prompt.table, again.prompt.table)


def spoilt(temperature: str, backbone):
    """An encoder, losses and table with a temperature below what settings allow; of nan, with such a prompt."""
    encoder, _, table = make_problem(backbone)
    term = losses_of(encoder).terms["nt_xent"]
    if temperature == "nan":
        encoder.prompt.table.data.fill_(float("nan"))
    else:
        term.settings = term.settings.model_copy(update={"temperature": float(temperature)})
    return encoder, Losses({"nt_xent": term}), table


STOPPED = {
    "composition": (make_composition, PLAN),
    "full": (partial(make_problem, frozen=False), replan(PLAN, learning_rate=0.01)),
    "share of the start": (make_problem, MIXED),
}


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_goes_on_to_the_same_weights(tiny_folders, tmp_path, name):
    """A signal between saves; queue, copy, head, scores of the dev set and the initial weights are remembered too."""
    make, plan = STOPPED[name]

    def go(folder, observer):
        encoder, losses, _ = problem = make(backbone_of(tiny_folders["bert"]))

        def dev():
            return float(sum(weight.detach().abs().sum() for weight in encoder.trainable().values()))

        _, state, _ = fit(problem, plan, tmp_path / folder, CPU, observer, dev=dev if name == "full" else None)
        parts = {"last": state.weights, "kept": encoder.state_dict(), "losses": losses.state_dict()}
        return state, {f"{part} {n}": weight for part, weights in parts.items() for n, weight in weights.items()}

    whole, expected = go("whole", Recorder())
    with pytest.raises(Interrupted) as stop:
        go("cut", Stop())
    assert stop.value.number == signal.SIGTERM
    for start in (5, 10):  # what has ended does not change when it is started again
        recorder = Recorder()
        state, found = go("cut", recorder)
        assert recorder.starts == [(start, 10)]
        assert state.evaluations == whole.evaluations
        assert found.keys() == expected.keys()
        for part, weight in expected.items():
            assert torch.equal(weight, found[part]), part


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
def test_every_group_of_weights_follows_the_schedule_from_its_own_peak(bert, tmp_path, optimizer):
    plan = replan(PLAN, optimizer=optimizer, beta2=0.8, weight_decay=0.03)  # AdamW's own is 0.01
    _, state, _ = run(bert, tmp_path, plan, problem=make_composition(bert))
    first, second = state.optimizer["param_groups"]
    assert (first["peak"], second["peak"]) == (0.05, 1e-3)
    own = [name for name in state.weights if ".copy." not in name]
    assert (len(first["params"]), len(second["params"])) == (len(own), len(state.weights) - len(own))
    for group in (first, second):
        assert group["lr"] == group["peak"] * plan.factor(9, 10)
        assert group["weight_decay"] == 0.03
        assert group.get("betas") == ((0.9, 0.8) if optimizer == "adamw" else None)


def test_only_the_encoder_goes_back_to_its_best_weights(bert, tmp_path):
    encoder, losses, table = make_composition(bert)
    scores, seen = iter([1.0, 9.0, 5.0, 4.0, 3.0]), []

    def dev() -> float:
        seen.append(copies(encoder.trainable() | losses.trainable()))
        return next(scores)

    _, state, recorder = run(bert, tmp_path, dev=dev, problem=(encoder, losses, table))
    assert [(step, best) for step, _, best in recorder.scores] == [
        (0, True), (3, True), (6, False), (9, False), (10, False),
    ]  # fmt: skip
    assert (state.best_step, state.best_score) == (3, 9.0)
    assert set(state.best_weights) == set(encoder.trainable())
    assert all(torch.equal(seen[1][name], weight) for name, weight in encoder.trainable().items())
    assert not torch.equal(seen[-1]["prompt.table"], encoder.prompt.table)
    last = losses.trainable()
    assert all(torch.equal(seen[-1][name], weight) for name, weight in last.items())
    assert any(not torch.equal(seen[1][name], weight) for name, weight in last.items())
    assert set(state.weights) == set(seen[0])


def test_the_initial_weights_have_their_share_in_what_is_scored_and_kept(bert, tmp_path):
    problem, seen = make_problem(bert), []
    encoder, start = problem[0], problem[0].prompt.table.detach().clone()

    def dev():
        seen.append(encoder.prompt.table.detach().clone())
        return float(len(seen))

    plain, _, _ = run(bert, tmp_path / "plain")
    run(bert, tmp_path / "own", MIXED, dev=dev, problem=problem)
    without_dev, _, _ = run(bert, tmp_path / "blind", MIXED)
    torch.testing.assert_close(encoder.prompt.table, 0.3 * start + 0.7 * plain.prompt.table)
    assert torch.equal(encoder.prompt.table, seen[-1]) and torch.equal(seen[0], start)
    assert torch.equal(encoder.prompt.table, without_dev.prompt.table)


SPOILT_BY_TRAINING = r"^train.learning_rate: at step 3 the embeddings .* lower it \(now 0.05\)"


@pytest.mark.parametrize(("problem", "scores", "message"), [
    ("nan", None, r"^prompt: the embeddings are not finite before any update; take"),
    ("1e-40", None, r"^objective\S*: the loss is nan at step 1, before any update.*temperature"),
    ("1e-30", None, r"^objective\S*: the gradient is inf at step 1, before any update.*temperature"),
    (None, [40.0, UndefinedScore("dev: all similarities are equal")], SPOILT_BY_TRAINING),
    (None, [40.0, NotFinite("evaluation: nan")], SPOILT_BY_TRAINING),
    (None, [UndefinedScore("dev: all gold scores are equal")], "^dev: all gold scores"),
    (None, [NotFinite("evaluation: nan")], "^prompt: the embeddings are not finite before any update"),
])  # fmt: skip
def test_who_is_to_blame_for_what_is_no_number(bert, tmp_path, problem, scores, message):
    with pytest.raises(CseError, match=message):
        run(bert, tmp_path, dev=scores and Mock(side_effect=scores), problem=problem and spoilt(problem, bert))


@pytest.mark.parametrize("bf16", [False, True])
def test_every_step_gets_its_rows_its_number_and_its_precision(bert, tmp_path, bf16):
    problem, seen = make_problem(bert, rows=21), []
    problem[1].register_forward_pre_hook(lambda _, given: seen.append((given[0], torch.is_autocast_enabled("cpu"))))
    run(bert, tmp_path, replan(PLAN, bf16=bf16), problem=problem)
    assert [(batch.step, batch.epoch) for batch, _ in seen] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    for batch, autocast in seen:
        expected = Batches(RowOrder(21), batch_size=8, epochs=2, seed=5).at(batch.step)[1]
        assert np.array_equal(batch.rows, expected)
        assert len(batch.slices) == 3 and autocast == bf16


@pytest.mark.parametrize(("most", "steps"), [(4, 4), (9, 6)])
def test_the_most_steps_end_a_run_and_its_schedule(bert, tmp_path, most, steps):
    plan = replan(PLAN, max_steps=most, eval_every=10)
    _, state, recorder = run(bert, tmp_path, plan, lambda: 7.0, make_problem(bert, rows=21))
    assert [best for _, _, best in recorder.scores] == [True, False], "a draw is no gain"
    last = recorder.records[-1]
    assert (state.step, last.step, last.steps, last.dev_score) == (steps, steps, steps, 7.0)
    assert last.learning_rate == pytest.approx(plan.train.learning_rate / steps)


def losses_over(encoder, second, **terms):
    """NT-Xent and the hinge with the default weights, 1 and 10, unless given, and those of a second source."""
    objective = ObjectiveSettings(**terms).over([second])
    return losses_from(objective, encoder, TrainSettings(), None, own=[{}, second])


def test_each_batch_has_the_gradient_of_its_sources_loss(bert):
    encoder, _, triplets = make_problem(bert, dropout=0.0)
    pairs = make_table(bert, 30, "pairs")
    losses = losses_over(encoder, {"energy_hinge": 0.0, "nt_xent": 0.5})
    for table, source, rows in ((triplets, 0, [3, 17, 0, 9, 31]), (pairs, 1, [5, 2, 8])):
        batch = replace(embed_rows(encoder, table, rows, PLAN), source=source)
        found = losses(batch)
        if source == 0:
            anchor, positive, negative = batch.views
            expected = nt_xent(cosines(anchor, positive), cosines(anchor, negative), temperature=0.05)
            expected = expected + 10 * energy_hinge(anchor, positive, negative, margin=0.2)
        else:
            expected = 0.5 * nt_xent(cosines(*batch.views), None, temperature=0.05)
        assert list(found) == (["nt_xent", "energy_hinge", "loss"] if source == 0 else ["nt_xent", "loss"])
        mixed, alone = (
            torch.autograd.grad(loss, encoder.prompt.table, retain_graph=True)[0] for loss in (found["loss"], expected)
        )
        torch.testing.assert_close(mixed, alone, rtol=1e-5, atol=1e-7)
        assert mixed.abs().max() > 1e-4


def test_a_queue_takes_in_the_batches_of_its_own_sources(bert):
    encoder, _, table = make_problem(bert, dropout=0.0)
    losses = losses_over(encoder, {"nt_xent": 0.0}, nt_xent={"queue": 20})
    queue = losses.terms["nt_xent"].queue
    for source, filled in ((0, 3), (1, 3), (0, 6)):
        losses.after_update(replace(embed_rows(encoder, table, [5, 2, 8], PLAN), source=source))
        assert int(queue.filled) == filled
