"""Search spaces: the papers' grids, the default that fits a system, and one line for what cannot be searched."""

import math

import pytest

from cse.settings import Settings
from cse.settings.load import flatten, packaged, settings_with
from cse.settings.presets import load_preset
from cse.tune.spaces import Dimension, build_space, check_seeds, only, parse_dimension, reached, read_space, shipped
from tests.parts import refusal


def over(*entries, **values) -> Settings:
    """Settings that search these entries."""
    return settings_with(Settings(), {"tune.over": list(entries)} | values)


RATES, LENGTHS = (0.005, 0.01, 0.03), (10, 12, 14, 16)


@pytest.mark.parametrize(("name", "values"), [
    ("promcse", {"train.batch_size": (256, 512), "train.learning_rate": RATES, "prompt.length": LENGTHS}),
    ("dcpcse", {"train.batch_size": (64, 128, 256, 512), "train.learning_rate": RATES, "prompt.length": LENGTHS}),
    ("d2cse", {"train.learning_rate": tuple(n / 100 for n in range(1, 10))}),
])  # fmt: skip
def test_the_grids_of_the_papers(name, values):
    space = build_space(settings_with(Settings(), {"tune.space": name}))
    assert {part.key: part.values for part in space.dimensions} == values
    assert len({setting.name for setting in space.grid()}) == len(space.grid()) == math.prod(map(len, values.values()))


ABLATIONS = [name for name in shipped() if name not in ("default", "promcse", "dcpcse", "d2cse")]


def of_preset(preset, **values):
    return settings_with(Settings(), load_preset(preset).settings | values)


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_setting_is_valid_and_differs_from_the_others(name):
    hint = packaged("spaces.yaml")[name].get("hint", "promcse-kv-minilm").split()[-1]
    base = of_preset(hint, **{"tune.space": name})
    space = build_space(base)
    found = [flatten(each.model_dump()) for each in reached(space, base)]
    assert len({str(values) for values in found}) == len(space.grid()) == len({one.name for one in space.grid()}) >= 4
    for setting, values in zip(space.grid(), found, strict=True):
        assert {key: values[key] for key in setting.values} == setting.values


@pytest.mark.parametrize(("name", "preset", "message"), [
    ("margin", "promcse-kv-minilm", "energy_hinge.weight is 0.0, but must be above 0; try `cse preset use"),
    ("prompt-length", "simcse-small-minilm", "train.parameters is full, but must be prompts"),
    ("marign", "promcse-kv-minilm", "no space 'marign'; did you mean 'margin'"),
])  # fmt: skip
def test_settings_that_an_ablation_cannot_vary(name, preset, message):
    assert message in refusal(build_space, of_preset(preset, **{"tune.space": name}))


FILE = """
about: three ways
set: {train.batch_size: 16}
over: ["prompt.length=[2, 3]"]
settings:
  fast: {train.learning_rate: 0.1}
  full: {train.parameters: full, prompt.kind: none, prompt.length: 0, train.learning_rate: 1.0e-4}
  d2cse: {preset: d2cse-a-minilm, train.learning_rate: 0.5}
"""


@pytest.fixture
def space_of(tmp_path):
    def of(text, **values):
        path = tmp_path / "ways.yaml"
        path.write_text(text, encoding="utf-8")
        wanted = settings_with(Settings(), {"tune.space": str(path)})
        wanted = settings_with(wanted, {**read_space(wanted.tune).set, **values})
        return build_space(wanted), wanted

    return of


def test_a_file_has_named_settings_before_its_grid(space_of):
    space, base = space_of(FILE)
    assert (space.name, space.search) == ("ways", "grid")
    assert [setting.name for setting in space.grid()] == ["fast", "full", "d2cse", "length 2", "length 3"]
    assert [setting.name for setting in only(space, ["full"]).grid()] == ["full"]
    assert {each.train.batch_size for each in reached(space, base)} == {16}
    assert refusal(only, space, ["fsat"]).startswith("--only: no setting 'fsat' in space ways; did you mean 'fast'")


def test_a_setting_may_start_from_a_preset(space_of):
    """Its system takes the place of that of params.yaml; data and machine stay, and the file's values go on top."""
    space, base = space_of(FILE, **{"prompt.length": 3, "train.device": "cpu", "data.seed": 77})
    (tried,) = reached(only(space, ["d2cse"]), base)
    values = load_preset("d2cse-a-minilm").settings
    assert tried.prompt.length == values["prompt.length"] != 3
    assert tried.objective.replaced_tokens.weight == values["objective.replaced_tokens.weight"] > 0
    assert (tried.train.device, tried.data.seed) == ("cpu", 77)
    assert (tried.train.learning_rate, tried.train.batch_size) == (0.5, 16)


@pytest.mark.parametrize(("text", "message"), [
    ("settings: {a: {}}\nseeds: [1]\n", "ways.yaml: seeds: "),
    ("settings: {backbone: {}}\n", "settings.backbone: the name of the bare backbone"),
    ("settings: {a: {}}\nover: [train.learning_rate=0.1..0.2]\n", "named settings take lists, not ranges"),
    ("settings: {a: {preset: d2cse-z-minilm}}\n", "setting a: d2cse-z-minilm: no such preset; did you mean"),
    ("settings: {a: {train.lr: 1}}\n", "setting a: train.lr: no such setting"),
    ("settings: {a: {train.epochs: -1}}\n", "tune: a: train.epochs: "),
    ("where: ['train.rate: train.seed=[1]']\n", "train.rate: no such setting"),
    ("over: [\n", "ways.yaml:2: not valid YAML"),
])  # fmt: skip
def test_a_file_that_is_no_space_is_one_line(space_of, text, message):
    assert message in refusal(space_of, text)


@pytest.mark.parametrize(("entry", "dimension"), [
    ("train.learning_rate=1e-3..5e-2 log", Dimension("train.learning_rate", (), 1e-3, 5e-2, log=True)),
    ("prompt.length = 4..16", Dimension("prompt.length", (), 4, 16)),
    ("objective.energy_hinge.margin=0..1", Dimension("objective.energy_hinge.margin", (), 0.0, 1.0)),
    ("pooler.kind=[cls, mean, null]", Dimension("pooler.kind", ("cls", "mean", None))),
])  # fmt: skip
def test_ranges_and_lists(entry, dimension):
    """Lists alone are a grid, a range is searched; whole numbers stay whole."""
    found = parse_dimension(entry)
    assert found == dimension and [type(end) for end in found.ends] == [type(end) for end in dimension.ends]
    assert all(found.holds(end) for end in found.ends) and not found.holds(17)
    space = build_space(over(entry, "train.epochs=[1, 2]"))
    assert space.search == ("grid" if dimension.values else "optuna")


@pytest.mark.parametrize(("entries", "says"), [
    (["train.lerning_rate=[1]"], "no such setting; did you mean 'train.learning_rate'?"),
    (["train.learning_rate"], "write KEY=[VALUE, ...] or KEY=LOW..HIGH"),
    (["train.batch_size=[]"], "train.batch_size: the list is empty"),
    (["train.batch_size=[64, 64]"], "64 is listed twice"),
    (["prompt.length=16..4"], "the range 16..4 is empty"),
    (["prompt.length=1.5..4"], "takes whole numbers"),
    (["train.learning_rate=0..1 log"], "a logarithmic range must start above 0"),
    (["train.epochs=[1]", "train.epochs=[2]"], "train.epochs appears twice"),
    (["prompt.length=0..8"], "prompt.length: a prompt needs at least 1 vector"),
    (["data.max_rows=[100, 200]"], "changes the data, not the training"),
    (["evaluation.device=[cpu]"], "does not change what the dev pairs measure"),
    (["train.workers=[1, 2]"], "must be the same in all trials"),
    (["objective.replaced_tokens.mask_share=0.1..0.5"], "the term has weight 0"),
])  # fmt: skip
def test_what_cannot_be_searched(entries, says):
    assert says in refusal(build_space, over(*entries))


def test_what_is_searched_with_one_setting_and_not_with_another():
    without = over("prompt.length=[4]", **{"prompt.kind": "none", "train.parameters": "full"})
    assert "the system has no prompt" in refusal(build_space, without)
    switched_on = ["objective.masked_lm.weight=[0.1]", "objective.masked_lm.decay_rate=[0.9]"]
    assert len(build_space(over(*switched_on)).grid()) == 1
    drawn, seeds = over("prompt.length=4..8"), over("train.seed=[1, 2]")
    check_seeds(build_space(drawn), drawn, 3, confirmed=True)
    for wanted, says in ((drawn, "this search decides by one seed"), (seeds, "train.seed is searched already")):
        assert f"--seeds: {says}" in refusal(check_seeds, build_space(wanted), wanted, 3, confirmed=False)
