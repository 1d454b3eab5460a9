"""Search spaces: the papers' grids, the default that fits a system, and one line for what cannot be searched."""

from __future__ import annotations

import pytest

from cse.errors import CseError
from cse.settings import Settings
from cse.settings.load import check_settings, set_key
from cse.settings.presets import load_preset
from cse.settings.spaces import build_space, parse_dimension, settings_with, space_names


def settings(**values) -> Settings:
    tree: dict = {}
    for key, value in values.items():
        set_key(tree, key.replace("__", "."), value)
    return check_settings(tree, where="a test")


def refusal(*over, **values) -> str:
    with pytest.raises(CseError) as caught:
        build_space(settings(tune__over=list(over), **values))
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- ready spaces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        (
            "promcse",
            24,
            {"train.batch_size": 256, "train.learning_rate": 0.005, "prompt.length": 10},
            {"train.batch_size": 512, "train.learning_rate": 0.03, "prompt.length": 16},
        ),
        (
            "dcpcse",
            48,
            {"train.batch_size": 64, "train.learning_rate": 0.005, "prompt.length": 10},
            {"train.batch_size": 512, "train.learning_rate": 0.03, "prompt.length": 16},
        ),
        ("d2cse", 9, {"train.learning_rate": 0.01}, {"train.learning_rate": 0.09}),
    ],
)
def test_the_grids_of_the_papers(name, count, first, last):
    space = build_space(settings(tune__space=name))
    grid = space.grid()
    assert len(grid) == count == len({tuple(values.items()) for values in grid})
    assert (grid[0], grid[-1]) == (first, last)
    assert space.search == ("two_step" if name == "d2cse" else "grid")


def test_the_second_step_lies_between_the_two_best():
    space = build_space(settings(tune__space="d2cse"))
    fine = space.second_step({0.01: 70.0, 0.02: 79.0, 0.03: 80.0, 0.04: 78.0})
    assert [values["train.learning_rate"] for values in fine.grid()] == [
        0.021, 0.022, 0.023, 0.024, 0.025, 0.026, 0.027, 0.028, 0.029,
    ]  # fmt: skip
    apart = space.second_step({0.02: 79.0, 0.04: 78.0, 0.09: 10.0})
    assert len(apart.grid()) == 19
    assert space.second_step({0.01: 1.0, 0.0105: 2.0}) is None  # nothing lies between


def test_the_default_space_fits_the_system():
    def keys(preset):
        return set(build_space(settings_with(Settings(), load_preset(preset).settings)).keys)

    assert keys("promcse-eh-minilm") == {
        "train.batch_size", "train.learning_rate", "prompt.length", "objective.energy_hinge.margin",
    }  # fmt: skip
    assert "objective.replaced_tokens.weight" in keys("d2cse-unsup-bert-base")
    assert keys("simcse-sup-minilm") == {"train.batch_size", "train.learning_rate"}
    full = build_space(settings_with(Settings(), load_preset("simcse-sup-minilm").settings))
    rate = next(part for part in full.dimensions if part.key == "train.learning_rate")
    assert rate.high < 1e-3 and rate.log  # full fine-tuning wants a far smaller one than prompts


@pytest.mark.parametrize("name", [name for name in space_names() if name != "default"])
def test_a_paper_s_grid_is_refused_where_it_says_nothing(name):
    nothing = settings_with(Settings(), load_preset("simcse-sup-minilm").settings | {"tune.space": name})
    if name == "d2cse":
        assert build_space(nothing).keys == ("train.learning_rate",)
    else:
        with pytest.raises(CseError, match=r"prompt.length: the system has no prompt"):
            build_space(nothing)


# ---- own spaces ---------------------------------------------------------------------------------------------------


def test_ranges_and_lists():
    rate = parse_dimension("train.learning_rate=1e-3..5e-2 log")
    assert (rate.low, rate.high, rate.log, rate.whole) == (1e-3, 5e-2, True, False)
    length = parse_dimension("prompt.length = 4..16")
    assert (length.low, length.high, length.whole) == (4, 16, True)
    assert length.holds(4) and length.holds(16) and not length.holds(17)
    margin = parse_dimension("objective.energy_hinge.margin=0..1")
    assert (margin.low, margin.high, margin.whole) == (0.0, 1.0, False)
    pooler = parse_dimension("pooler.kind=[cls, mean, null]")
    assert pooler.values == ("cls", "mean", None)


def test_lists_alone_are_a_grid_and_a_range_is_searched():
    assert build_space(settings(tune__over=["prompt.length=[4, 8]", "train.epochs=[1, 2]"])).search == "grid"
    assert build_space(settings(tune__over=["prompt.length=4..8", "train.epochs=[1, 2]"])).search == "optuna"


@pytest.mark.parametrize(
    ("over", "says"),
    [
        (["train.lerning_rate=[1]"], "no such setting; did you mean 'train.learning_rate'?"),
        (["train.learning_rate"], "write KEY=[VALUE, ...] or KEY=LOW..HIGH"),
        (["train.learning_rate=fast"], "neither a list like [8, 12] nor a range like 8..16"),
        (["train.batch_size=[]"], "train.batch_size: the list is empty"),
        (["train.batch_size=[64, 64]"], "64 is listed twice"),
        (["prompt.length=16..4"], "the range 16..4 is empty"),
        (["prompt.length=1.5..4"], "takes whole numbers"),
        (["train.learning_rate=0..1 log"], "a logarithmic range must start above 0"),
        (["train.learning_rate=a..b"], "'a' is not a number"),
        (["train.epochs=[1]", "train.epochs=[2]"], "train.epochs appears twice"),
        (["train.learning_rate=[-1.0]"], "greater than 0"),
        (["prompt.length=0..8"], "prompt.length: a prompt needs at least 1 vector"),
        (["train.batch_size=[1]"], "greater than or equal to 2"),
        (["data.max_rows=[100, 200]"], "changes the data, not the training"),
        (["evaluation.device=[cpu]"], "does not change what the dev pairs measure"),
        (["train.workers=[1, 2]"], "must be the same in all trials"),
        (["train.selection=[inference, training]"], "must be the same in all trials"),
        (["objective.replaced_tokens.mask_share=0.1..0.5"], "the term has weight 0"),
        (["objective.masked_lm.decay_rate=[0.9, 0.95]"], "the term has weight 0"),
    ],
)
def test_what_cannot_be_searched(over, says):
    assert says in refusal(*over)


def test_a_term_may_be_switched_on_by_the_search():
    space = build_space(
        settings(tune__over=["objective.masked_lm.weight=[0.1]", "objective.masked_lm.decay_rate=[0.9]"])
    )
    assert len(space.grid()) == 1


def test_contradictions():
    with pytest.raises(CseError, match="the system has no prompt"):
        build_space(settings(prompt__kind="none", train__parameters="full", tune__over=["prompt.length=[4]"]))
    prepared = {
        "data__view": "sentences",
        "objective__energy_hinge__weight": 0.0,
        "objective__replaced_tokens__weight": 0.01,
        "objective__replaced_tokens__corruption": "prepared",
    }
    assert "rows were already corrupted" in refusal("objective.replaced_tokens.mask_share=0.1..0.5", **prepared)
    assert build_space(settings(tune__over=["objective.replaced_tokens.weight=[0.01, 0.1]"], **prepared))
