"""Flow parameters are checked by the settings classes, and by Prefect against schemas made from them."""

from __future__ import annotations

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate
from pydantic import TypeAdapter

from cse.errors import CseError
from cse.settings import Settings, load_settings
from cse.settings.data import DataSettings
from cse.settings.load import flatten, walk_keys
from cse.settings.presets import load_preset, preset_names
from flows.parameters import (
    Sweep,
    as_options,
    changes_of,
    check_train_path,
    settings_of_run,
    sweep_options,
    write_settings,
)
from flows.train_cse import train_cse

SCHEMA = parameter_schema(train_cse).model_dump()


def problems(**parameters) -> list[str]:
    return [error.message for error in validate(parameters, SCHEMA)]


def test_the_form_takes_every_default_and_every_preset():
    values = flatten(Settings().model_dump(mode="json"))
    assert values.keys() == {key for key, _ in walk_keys()}
    for key, value in values.items():
        assert problems(overrides={key: value}) == [], key
    assert SCHEMA["properties"]["preset"]["anyOf"][0]["enum"] == preset_names()
    for name in preset_names():
        assert problems(preset=name, overrides=dict(load_preset(name).settings)) == [], name


@pytest.mark.parametrize(
    "parameters",
    [{"preset": "promcse"}, {"overrides": {"train.epochs": 0}}, {"overrides": {"train_epochs": 1}},
     {"sweep": {"train.epochs": [1, 0]}}, {"sweep": {"prompt.length": "many"}}],
)  # fmt: skip
def test_the_form_refuses(parameters):
    assert problems(**parameters)


def test_checking_leaves_the_file_alone(tmp_path):
    params = tmp_path / "params.yaml"
    text = "train:\n  epochs: 1 # once\n"
    params.write_text(text)
    settings, changed = settings_of_run(params, "promcse-kv-minilm", {"train.epochs": 3})
    assert changed
    assert settings.train.epochs == 3
    assert settings.prompt.kind == "key_value"
    assert settings_of_run(params, None, {"train.epochs": 1})[1] is False, "as it is already"
    assert params.read_text() == text
    with pytest.raises(CseError, match="promse-eh: no such preset; did you mean 'promcse-eh-"):
        settings_of_run(params, "promse-eh", {})
    for key, value, says in (("train.epochs", -1, r"train\.epochs"), ("train.epoch", 2, "did you mean 'train.epochs'")):
        with pytest.raises(CseError, match=says):
            settings_of_run(params, None, {key: value})
    assert params.read_text() == text
    assert write_settings(params, None, {"train.epochs": 3}) == {"train.epochs": (1, 3)}
    assert params.read_text() == "train:\n  epochs: 3 # once\n"
    changed = write_settings(params, "promcse-eh-minilm", {"train.epochs": 3})
    assert "train.epochs" not in changed, "the preset changes it, the override changes it back"
    assert load_settings(params).train.epochs == 3


def test_a_preset_brings_its_data_unless_the_run_says_otherwise(tmp_path):
    params, system = tmp_path / "params.yaml", "promcse-eh-bert-base"
    params.write_text("data: {source: files, train_path: mine.csv, max_rows: 10}\n")
    given = changes_of(DataSettings(source="files", train_path="other.csv", max_rows=5), {"data.max_rows": 7})
    assert given == {"data.source": "files", "data.train_path": "other.csv", "data.max_rows": 7}
    for changes, keep_data, expected in (
        ({}, False, ("hub", "mine.csv", None)),
        ({}, True, ("files", "mine.csv", 10)),
        (given, False, ("files", "other.csv", 7)),
    ):
        settings, _ = settings_of_run(params, system, changes, keep_data=keep_data)
        check_train_path(system, changes, settings)
        assert (settings.data.source, settings.data.train_path, settings.data.max_rows) == expected
    changes = {"data.train_path": "mine.csv"}
    settings, _ = settings_of_run(params, system, changes)
    with pytest.raises(CseError, match=r"data\.train_path: not read, because preset promcse-eh-bert-base uses data"):
        check_train_path(system, changes, settings)
    check_train_path(None, changes, settings)


def test_overrides_on_a_command_line():
    assert as_options({"train.epochs": 2, "prompt.dropout": None, "evaluation.measures": ["sts", "cxc"]}) == [
        "--set", "train.epochs=2", "--set", "prompt.dropout=null", "--set", "evaluation.measures=[sts, cxc]",
    ]  # fmt: skip


def test_the_form_takes_a_ready_space_lists_and_ranges():
    for sweep in ("default", "promcse", {"prompt.length": [8, 16]}, {"train.learning_rate": "1e-3..5e-2 log"}):
        assert problems(sweep=sweep) == []
    given = {"prompt.length": [8, 16], "train.learning_rate": "1e-3..5e-2 log"}
    assert sweep_options(given) == {"tune.over": ["prompt.length=[8, 16]", "train.learning_rate=1e-3..5e-2 log"]}
    assert sweep_options("promcse") == {"tune.space": "promcse", "tune.over": []}
    refused = [("promcs", "did you mean 'promcse'"), ({}, "empty"), ({"data.view": ["pairs"]}, "changes the data")]
    for wrong, says in refused:
        with pytest.raises((ValueError, CseError), match=says):
            TypeAdapter(Sweep).validate_python(wrong)
