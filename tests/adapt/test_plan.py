"""What an adaptation does with its budget."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter

from cse.adapt.clock import Length, Pace, TrainingPlan, Workload, make_plan
from cse.adapt.ladder import FEW_ROWS, FULL, LABELS, PROMPTS, RUNGS, TEXT
from cse.errors import CseError

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


@pytest.mark.parametrize(
    ("left", "rates", "seeds", "epochs"),
    [
        (229, 1, 1, 1),
        (230, 2, 1, 1),  # the better of two, then 30 s to measure it
        (359, 2, 1, 1),
        (360, 2, 2, 1),  # 130 s more for a second seed; the first has been trained
        (1000, 4, 3, 1),  # 3 x 230 s would be needed for two epochs
        (1090, 4, 3, 2),
        (10_000, 4, 3, 10),
    ],
)
def test_rates_come_first_then_seeds_then_epochs(left, rates, seeds, epochs):
    assert planned(WORK, left) == (rates, seeds, epochs)


@pytest.mark.parametrize(("left", "plan"), [(320, (1, 1, 1)), (579, (1, 1, 1)), (580, (2, 1, 1)), (900, (2, 2, 1))])
def test_full_fine_tuning_is_counted_with_its_own_pace(left, plan):
    """260 s for one training of both, 60 s to measure both."""
    assert planned(BOTH, left) == plan


@pytest.mark.parametrize(
    ("left", "rates", "seeds", "epochs"),
    [
        (130, 1, 1, 1),
        (230, 1, 1, 2),
        (430, 1, 1, 4),
        (859, 1, 1, 8),
        (860, 1, 2, 4),
        (2189, 2, 3, 6),  # two rates take 200 s, three seeds of six epochs 1,890 s
        (40_000, 4, 3, 10),
    ],
)
def test_with_labels_four_epochs_come_before_a_second_seed_and_rates_last(left, rates, seeds, epochs):
    assert planned(replace(WORK, kind=LABELS), left) == (rates, seeds, epochs)


def test_few_labelled_rows_have_more_epochs():
    """Ten steps of 1 s an epoch: twelve epochs before a second seed, sixty at most."""
    few = replace(WORK, kind=LABELS, steps=lambda epochs: 10 * epochs)
    assert planned(few, 150) == (1, 1, 12)
    assert planned(few, 299) == (2, 1, 24)
    assert planned(few, 100_000) == (4, 3, 60)


@pytest.mark.parametrize(
    ("left", "rates", "seeds", "epochs"),
    [
        (50, 1, 1, 1),  # 10 steps, once more on all rows, 30 s to measure
        (299, 1, 1, 10),
        (300, 1, 2, 6),
        (40_000, 1, 3, 10),
    ],
)
def test_few_labelled_rows_are_trained_on_twice_and_try_no_rates(left, rates, seeds, epochs):
    few = replace(WORK, kind=FEW_ROWS, steps=lambda epochs: 10 * epochs)
    assert planned(few, left) == (rates, seeds, epochs)
    with pytest.raises(CseError, match="need 50 seconds here"):
        make_plan(few, budget=49, spent=0)
    assert few.length(6) == Length(6, 60, 60), "only the last weights are scored"


def test_the_whole_model_is_left_out_if_the_budget_allows_no_training_of_both():
    plan = make_plan(BOTH, budget=319, spent=0)
    assert plan == make_plan(WORK, budget=319, spent=0) and list(plan.rates) == [PROMPTS]


def test_a_system_has_no_more_rates_than_are_known():
    assert make_plan(BOTH, budget=100_000, spent=0).rates == {PROMPTS: [0.1, 0.3, 0.03, 1.0], FULL: [1e-4, 2e-4]}


def test_a_budget_below_one_training_is_refused():
    with pytest.raises(CseError, match=r"^--budget: one training .* need 2.2 minutes here, the budget is 2.2 minutes"):
        make_plan(WORK, budget=134, spent=5)
    with pytest.raises(CseError, match=r"the budget is 90 seconds; raise it"):
        make_plan(WORK, budget=90, spent=5)


def test_start_and_evaluations_are_counted():
    """50 s to start, nine evaluations of 10 s: 240 s in all, and 30 s to measure."""
    work = replace(WORK, paces={PROMPTS: Pace(50, 1, 10)})
    assert planned(work, 270) == (1, 1, 1)
    with pytest.raises(CseError, match="--budget"):
        planned(work, 269)


def test_without_anything_that_selects_there_is_no_search_and_no_further_epoch():
    work = replace(WORK, selects=False)
    assert planned(work, 10_000) == (1, 3, 1)
    assert planned(work, 260) == (1, 2, 1)


def test_epochs_that_the_user_asks_for_are_the_least():
    assert planned(replace(WORK, epochs=4), 430)[2] == 4
    assert planned(replace(WORK, epochs=4), 3000)[2] == 5
    assert planned(replace(WORK, epochs=20), 100_000)[2] == 20


def test_epochs_that_no_step_is_left_for_are_not_planned():
    plan = make_plan(replace(WORK, max_steps=50, steps=lambda epochs: 50), budget=10_000, spent=0)
    assert plan.training == plan.trial == Length(1, 50, 7)


def test_a_plan_survives_its_record():
    plan = make_plan(BOTH, budget=700, spent=0)
    assert TypeAdapter(TrainingPlan).validate_python(json.loads(json.dumps(asdict(plan)))) == plan
    assert str(plan) == (
        "learning rates 0.1, 0.3 (prompts); learning rates 0.0001, 0.0002 (full); 1 seed of 1 epoch (100 steps)"
    )


def test_what_the_budget_did_not_allow_is_noted():
    def notes(left: float) -> str:
        return " ".join(make_plan(WORK, budget=left, spent=0).notes)

    assert "1 of 3 seeds" in notes(130) and "one learning rate" in notes(130)
    assert "1 of 3 seeds" in notes(230) and "one learning rate" not in notes(230)
    assert notes(10_000) == ""


def test_the_rate_of_the_settings_is_tried_first():
    assert RUNGS[PROMPTS].rates_for(TEXT, 0.05)[:2] == (0.05, 0.01)
    assert RUNGS[PROMPTS].rates_for(LABELS, 0.3) == (0.3, 0.1, 0.2, 0.05)
    assert RUNGS[FULL].rates_for(LABELS, 0.3) == (2e-4, 5e-4, 5e-5), "which is for prompts"
    assert RUNGS[FULL].rates_for(FEW_ROWS, 0.3) == (5e-5, 1e-4)
