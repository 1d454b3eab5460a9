"""The file of a study: what a round trains, and mistakes in one line."""

from __future__ import annotations

import pytest

from cse.errors import CseError
from cse.settings import Settings
from cse.study.plan import read_study, runs_of
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
    assert fast.values == {"train.learning_rate": 0.1}


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


def test_a_wrong_value_names_its_setting(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("rounds: {a: {}}\nsettings: {good: {}, bad: {prompt.length: many}}\n", encoding="utf-8")
    with pytest.raises(CseError, match=r"setting bad: .*prompt\.length"):
        runs_of(read_study(path), "a", Settings())
