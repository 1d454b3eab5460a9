"""The file of a study: what a round trains, and mistakes in one line."""

from __future__ import annotations

import pytest

from cse.errors import CseError
from cse.settings import Settings
from cse.settings.presets import load_preset
from cse.settings.spaces import settings_with
from cse.study.plan import read_study, runs_of
from tests.pipeline.workspace import ROOT
from tests.study.workspace import STUDY


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "tiny.study.yaml"
    path.write_text(STUDY, encoding="utf-8")
    return read_study(path)


def test_every_setting_has_its_first_seed_before_any_has_its_second(study):
    runs = runs_of(study, "whole", Settings(), only=["fast", "full"])
    assert [run.name for run in runs] == ["fast-1", "full-1", "fast-2", "full-2"]


def test_a_setting_goes_over_the_study_and_a_round_over_the_setting(study):
    (fast,) = runs_of(study, "screen", Settings(), only=["fast"])
    assert fast.settings.train.batch_size == 16
    assert fast.settings.train.learning_rate == 0.1
    assert fast.settings.data.max_rows == 32
    assert fast.settings.train.seed == fast.seed == 42


def test_a_setting_may_start_from_a_preset(study):
    """Its system takes the place of that of params.yaml; data and machine stay, and the study's values go on top."""
    preset = {"preset": "d2cse-a-minilm", "train.learning_rate": 0.5}
    base = settings_with(Settings(), {"prompt.length": 3, "train.device": "cpu", "data.seed": 77})
    (run,) = runs_of(study.model_copy(update={"settings": {"d2cse": preset}}), "screen", base)
    values = load_preset("d2cse-a-minilm").settings
    assert run.settings.prompt.length == values["prompt.length"] != 3
    assert run.settings.objective.replaced_tokens.weight == values["objective.replaced_tokens.weight"] > 0
    assert (run.settings.train.device, run.settings.data.seed) == ("cpu", 77)
    assert (run.settings.train.learning_rate, run.settings.train.batch_size) == (0.5, 16)
    with pytest.raises(CseError, match="setting d2cse: d2cse-z-minilm: no such preset; did you mean"):
        runs_of(study.model_copy(update={"settings": {"d2cse": {"preset": "d2cse-z-minilm"}}}), "screen", base)


def test_names_of_the_raw_models_settings_end_in_their_rates():
    runs = runs_of(read_study(ROOT / "benchmarks/raw_model.study.yaml"), "screen", Settings())
    searched = [run for run in runs if run.setting.startswith(("u-", "s-"))]
    assert len(searched) == 65  # 13 systems, five rates each
    for run in searched:
        assert run.settings.train.learning_rate == float(run.setting[-4:])
        assert (run.settings.data.view == "sentences") == run.setting.startswith("u-")
        assert (run.settings.pooler.kind == "mean") == ("-mean-" in run.setting)
        assert (run.settings.objective.energy_hinge.weight > 0) == ("-eh-" in run.setting)


@pytest.mark.parametrize(
    ("name", "only", "message"),
    [
        ("scren", (), "no round 'scren' in the study; did you mean 'screen'"),
        ("screen", ("fsat",), "no setting 'fsat' in the study; did you mean 'fast'"),
    ],
)
def test_an_unknown_name_is_one_line(study, name, only, message):
    with pytest.raises(CseError, match=message):
        runs_of(study, name, Settings(), only)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: {a: {}}\n", "settings: field required"),
        ("rounds: {a: {}}\nsettings: {a: {}}\nseeds: [1]\n", "seeds: extra inputs"),
        ("rounds: {a: {seeds: []}}\nsettings: {a: {}}\n", "rounds.a.seeds: list should have at least 1"),
        ("rounds: {a: {}}\nsettings: {backbone: {}}\n", "settings.backbone: the name of the bare backbone"),
        ("- a\n", "not a study; write rounds and settings"),
        ("rounds: [\n", "study.yaml:2: not valid YAML"),
    ],
)
def test_a_file_that_is_no_study_is_one_line(tmp_path, text, message):
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CseError, match=f"(?i){message}") as found:
        read_study(path)
    assert "\n" not in str(found.value)


def test_a_preset_meets_the_data_of_the_study_and_not_those_of_params_alone(study):
    """Sentences do not fit the three columns of params.yaml; the study names one."""
    base = settings_with(Settings(), {"data.source": "files", "data.columns": ["a", "b", "c"]})
    plan = study.model_copy(
        update={"set": {"data.columns": ["text"]}, "settings": {"simcse": {"preset": "simcse-unsup-bert-base"}}}
    )
    (run,) = runs_of(plan, "screen", base)
    assert (run.settings.data.view, list(run.settings.data.columns)) == ("sentences", ["text"])
