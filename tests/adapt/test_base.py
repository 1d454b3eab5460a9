"""What an adaptation starts from, whatever params.yaml holds."""

from __future__ import annotations

import pytest

from cse.adapt.base import base_settings
from cse.errors import CseError
from cse.settings import PARAMS_FILE, Settings

LEFT_OVER = """
backbone: {name: there}
data: {task_path: another/task, view: pairs}
prompt: {length: 40}
train: {epochs: 3, dev_measure: MAP, precision: fp32, device: cpu}
objective: {energy_hinge: {weight: 0.0}}
export: {score_loss: 2.0}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PARAMS_FILE.write_text(LEFT_OVER)


def test_what_another_run_left_is_told_and_not_taken(place):
    settings, told = base_settings(PARAMS_FILE, {"data.view": "categories", "objective.energy_hinge.weight": 0.0})
    usual = Settings()
    assert (settings.prompt, settings.train.epochs, settings.train.dev_measure) == (
        usual.prompt, usual.train.epochs, usual.train.dev_measure,
    )  # fmt: skip
    assert settings.data.task_path == usual.data.task_path
    assert (settings.backbone.name, settings.export.score_loss) == ("there", 2.0)
    assert (settings.train.precision, settings.train.device) == ("fp32", "cpu")
    assert told == (
        "an adaptation starts from the defaults; not taken from params.yaml: data.task_path another/task, "
        "prompt.length 40, train.epochs 3, train.dev_measure MAP (-s sets a value)"
    ), "what the command sets itself is no news"


def test_a_file_that_was_named_is_taken_but_for_its_data(place):
    settings, told = base_settings(PARAMS_FILE, {"train.epochs": 2, "data.view": "pairs"}, named=True)
    assert (settings.prompt.length, settings.train.epochs, settings.train.dev_measure) == (40, 2, None)
    assert settings.data.task_path == Settings().data.task_path
    assert told.endswith(": data.task_path another/task, train.dev_measure MAP (-s sets a value)")


def test_null_is_a_value_too(place):
    PARAMS_FILE.write_text("backbone: {max_length: 40}\ntrain: {max_steps: 7, row_groups: null}\n")
    settings, told = base_settings(PARAMS_FILE, {"backbone.max_length": None, "train.max_steps": None})
    assert (settings.backbone.max_length, settings.train.max_steps, told) == (None, None, None)


def test_the_project_s_own_file_changes_nothing(tmp_path, monkeypatch):
    settings, told = base_settings(PARAMS_FILE, {})
    assert (settings, told) == (Settings(), None)
    monkeypatch.chdir(tmp_path)
    assert base_settings(PARAMS_FILE, {}) == (Settings(), None), "no file is needed"
    with pytest.raises(CseError, match="no such file"):
        base_settings(PARAMS_FILE, {}, named=True)
