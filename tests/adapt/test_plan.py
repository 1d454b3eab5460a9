"""What an adaptation does with its budget."""

from dataclasses import replace

import pytest

from cse.adapt.clock import Pace, Workload, make_plan
from cse.adapt.ladder import FEW_ROWS, FULL, LABELS, PROMPTS, TEXT
from tests.parts import refusal

# a training takes 100 s for each epoch, measuring a model 30 s
REST = {"measuring": 30, "epochs": 1, "max_steps": None, "selects": True}
WORK = Workload(TEXT, {PROMPTS: Pace(0, 1, 0)}, steps=lambda epochs: 100 * epochs, **REST)
SLOW_TO_START = replace(WORK, paces={PROMPTS: Pace(50, 1, 10)})
LABELLED, FEW, LABELLED_FEW = (
    replace(WORK, kind=kind, steps=lambda epochs, steps=steps: steps * epochs)
    for kind, steps in ((LABELS, 100), (FEW_ROWS, 10), (LABELS, 10))
)


@pytest.mark.parametrize(
    ("work", "left", "seeds", "epochs"),
    [
        # seeds, then epochs
        (WORK, 229, 1, 1),
        (WORK, 259, 1, 2),
        (WORK, 260, 2, 1),
        (WORK, 689, 3, 1),  # 3 x 230 s would be needed for two epochs
        (WORK, 690, 3, 2),
        (WORK, 10_000, 3, 10),
        # with labels four epochs come before a second seed
        (LABELLED, 859, 1, 8),
        (LABELLED, 860, 2, 4),
        # ten steps of 1 s an epoch: twelve epochs before a second seed, sixty at most
        (LABELLED_FEW, 150, 1, 12),
        (LABELLED_FEW, 100_000, 3, 60),
        # few rows are trained on twice: 10 steps, once more on all rows, 30 s to measure
        (FEW, 299, 1, 10),
        (FEW, 300, 2, 6),
        (FEW, 40_000, 3, 10),
        # 50 s to start, nine evaluations of 10 s: 240 s in all, and 30 s to measure
        (SLOW_TO_START, 539, 1, 3),
        (SLOW_TO_START, 540, 2, 1),
        # without anything that selects there is no further epoch
        (replace(WORK, selects=False), 10_000, 3, 1),
        # epochs that the user asks for are the least
        (replace(WORK, epochs=20), 100_000, 3, 20),
    ],
)
def test_what_a_budget_allows(work, left, seeds, epochs):
    plan = make_plan(work, budget=left + 5, spent=5)
    assert (plan.seeds, plan.epochs) == (seeds, epochs)


def test_a_budget_below_one_training_is_refused():
    for work, left, says in (
        (WORK, 129, "one training and its measures need 2.2 minutes here, the budget is 2.2 minutes"),
        (FEW, 49, "need 55 seconds here"),
        (SLOW_TO_START, 269, "--budget: "),
    ):
        assert says in refusal(make_plan, work, budget=left + 5, spent=5)


def test_the_whole_model_is_left_out_if_the_budget_allows_no_training_of_both():
    both = replace(WORK, paces={PROMPTS: Pace(0, 1, 0), FULL: Pace(0, 1.6, 0)})
    plan = make_plan(both, budget=319, spent=0)
    assert plan == make_plan(WORK, budget=319, spent=0) and plan.systems == [PROMPTS]


def test_epochs_that_no_step_is_left_for_are_not_planned():
    plan = make_plan(replace(WORK, max_steps=50, steps=lambda epochs: 50), budget=10_000, spent=0)
    assert (plan.epochs, plan.steps, plan.eval_every) == (1, 50, 7)
