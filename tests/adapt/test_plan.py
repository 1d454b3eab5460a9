"""What an adaptation does with its budget."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter

from cse.adapt.clock import Length, Pace, TrainingPlan, Workload, make_plan
from cse.adapt.ladder import FEW_ROWS, FULL, LABELS, PROMPTS, TEXT
from tests.parts import refusal

# a training takes 100 s for each epoch, measuring a model 30 s
WORK = Workload(
    TEXT,
    {PROMPTS: (0.1, 0.3, 0.03, 1.0)},
    {PROMPTS: Pace(0, 1, 0)},
    measuring=30,
    epochs=1,
    steps=lambda epochs: 100 * epochs,
    max_steps=None,
    selects=True,
)
BOTH = replace(WORK, rates=WORK.rates | {FULL: (1e-4, 2e-4)}, paces={PROMPTS: Pace(0, 1, 0), FULL: Pace(0, 1.6, 0)})


def planned(work: Workload, left: float) -> tuple[int, int, int]:
    plan = make_plan(work, budget=left + 5, spent=5)
    return len(plan.rates[PROMPTS]), plan.seeds, plan.training.epochs


TEN_STEPS = {"steps": lambda epochs: 10 * epochs}


@pytest.mark.parametrize(
    ("work", "left", "rates", "seeds", "epochs"),
    [
        # rates come first, then seeds, then epochs
        (WORK, 229, 1, 1, 1),
        (WORK, 230, 2, 1, 1),  # the better of two, then 30 s to measure it
        (WORK, 360, 2, 2, 1),  # 130 s more for a second seed; the first has been trained
        (WORK, 1000, 4, 3, 1),  # 3 x 230 s would be needed for two epochs
        (WORK, 1090, 4, 3, 2),
        (WORK, 10_000, 4, 3, 10),
        # of both kinds of model 260 s for one training of each, 60 s to measure them
        (BOTH, 579, 1, 1, 1),
        (BOTH, 580, 2, 1, 1),
        # with labels four epochs come before a second seed, and rates last
        (replace(WORK, kind=LABELS), 859, 1, 1, 8),
        (replace(WORK, kind=LABELS), 860, 1, 2, 4),
        (replace(WORK, kind=LABELS), 2189, 2, 3, 6),  # two rates take 200 s, three seeds of six epochs 1,890 s
        # ten steps of 1 s an epoch: twelve epochs before a second seed, sixty at most
        (replace(WORK, kind=LABELS, **TEN_STEPS), 150, 1, 1, 12),
        (replace(WORK, kind=LABELS, **TEN_STEPS), 100_000, 4, 3, 60),
        # few rows are trained on twice, and try no rates: 10 steps, once more on all rows, 30 s to measure
        (replace(WORK, kind=FEW_ROWS, **TEN_STEPS), 50, 1, 1, 1),
        (replace(WORK, kind=FEW_ROWS, **TEN_STEPS), 299, 1, 1, 10),
        (replace(WORK, kind=FEW_ROWS, **TEN_STEPS), 300, 1, 2, 6),
        (replace(WORK, kind=FEW_ROWS, **TEN_STEPS), 40_000, 1, 3, 10),
        # 50 s to start, nine evaluations of 10 s: 240 s in all, and 30 s to measure
        (replace(WORK, paces={PROMPTS: Pace(50, 1, 10)}), 270, 1, 1, 1),
        # without anything that selects there is no search and no further epoch
        (replace(WORK, selects=False), 260, 1, 2, 1),
        (replace(WORK, selects=False), 10_000, 1, 3, 1),
        # epochs that the user asks for are the least
        (replace(WORK, epochs=4), 430, 1, 1, 4),
        (replace(WORK, epochs=20), 100_000, 4, 3, 20),
    ],
)
def test_what_a_budget_allows(work, left, rates, seeds, epochs):
    assert planned(work, left) == (rates, seeds, epochs)


@pytest.mark.parametrize(
    ("work", "left", "says"),
    [
        (WORK, 129, "one training and its measures need 2.2 minutes here, the budget is 2.2 minutes"),
        (WORK, 85, "the budget is 90 seconds; raise it"),
        (replace(WORK, kind=FEW_ROWS, **TEN_STEPS), 49, "need 55 seconds here"),
        (replace(WORK, paces={PROMPTS: Pace(50, 1, 10)}), 269, "--budget: "),
    ],
)
def test_a_budget_below_one_training_is_refused(work, left, says):
    assert says in refusal(planned, work, left)


def test_the_whole_model_is_left_out_if_the_budget_allows_no_training_of_both():
    plan = make_plan(BOTH, budget=319, spent=0)
    assert plan == make_plan(WORK, budget=319, spent=0) and list(plan.rates) == [PROMPTS]


def test_epochs_that_no_step_is_left_for_are_not_planned():
    plan = make_plan(replace(WORK, max_steps=50, steps=lambda epochs: 50), budget=10_000, spent=0)
    assert plan.training == plan.trial == Length(1, 50, 7)


def test_a_plan_survives_its_record():
    plan = make_plan(BOTH, budget=700, spent=0)
    assert TypeAdapter(TrainingPlan).validate_python(json.loads(json.dumps(asdict(plan)))) == plan
