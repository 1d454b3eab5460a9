"""Prefect knows the presets; the settings classes check all else when the run begins, and a file stays as it is."""

from __future__ import annotations

from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from cse.settings import load_settings
from cse.settings.presets import preset_names
from flows.stages import as_options
from flows.train_cse import settings_of_run, train_cse, write_settings
from tests.parts import refusal


def test_the_form_takes_presets_and_settings_and_refuses_an_unknown_preset():
    schema = parameter_schema(train_cse).model_dump()
    assert schema["properties"]["preset"]["anyOf"][0]["enum"] == preset_names()
    assert validate({"preset": "promcse-eh-minilm", "overrides": {"train.epochs": 3}}, schema) == []
    assert validate({"preset": "promcse"}, schema)


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
    for preset, changes, says in (
        ("promse-eh", {}, "promse-eh: no such preset; did you mean 'promcse-eh-"),
        (None, {"train.epochs": -1}, "train.epochs"),
        (None, {"train.epoch": 2}, "did you mean 'train.epochs'"),
    ):
        assert says in refusal(settings_of_run, params, preset, changes)
    assert params.read_text() == text
    assert write_settings(params, None, {"train.epochs": 3}) == {"train.epochs": (1, 3)}
    assert params.read_text() == "train:\n  epochs: 3 # once\n"
    changed = write_settings(params, "promcse-eh-minilm", {"train.epochs": 3})
    assert "train.epochs" not in changed, "the preset changes it, the override changes it back"
    assert load_settings(params).train.epochs == 3


def test_a_preset_brings_its_data_unless_the_run_says_otherwise(tmp_path):
    params, system = tmp_path / "params.yaml", "promcse-eh-bert-base"
    params.write_text("data: {source: files, train_path: mine.csv, max_rows: 10}\n")
    for changes, keep_data, expected in (
        ({}, False, ("hub", "mine.csv", None)),
        ({}, True, ("files", "mine.csv", 10)),
        ({"data.source": "files", "data.train_path": "other.csv"}, False, ("files", "other.csv", None)),
    ):
        settings, _ = settings_of_run(params, system, changes, keep_data=keep_data)
        assert (settings.data.source, settings.data.train_path, settings.data.max_rows) == expected
    told = refusal(settings_of_run, params, system, {"data.train_path": "mine.csv"})
    assert "data.train_path: not read, because preset promcse-eh-bert-base uses data" in told


def test_overrides_on_a_command_line():
    assert as_options({"train.epochs": 2, "prompt.dropout": None, "evaluation.measures": ["sts", "cxc"]}) == [
        "--set", "train.epochs=2", "--set", "prompt.dropout=null", "--set", "evaluation.measures=[sts, cxc]",
    ]  # fmt: skip
