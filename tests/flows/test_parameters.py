"""What a flow takes and hands to `cse`, what a form refuses, and what needs no server; runs: test_deployments.py."""

import pytest
from click.testing import CliRunner
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from cse.cli.main import cli
from cse.settings import load_settings
from cse.settings.presets import preset_names
from flows import command_flows
from flows.command_flows import adapt_cse, evaluate_cse, export_cse, index_cse, tune_cse
from flows.commands import flow_command
from flows.models import models_command
from flows.stages import as_options
from flows.train_cse import settings_of_run, train_cse, write_settings
from tests.parts import refusal


def test_a_flow_gives_its_command_what_it_was_given(monkeypatch):
    def run_command(name, arguments, return_state):
        understood.update(cli.get_command(None, name).make_context(name, arguments[1:]).params)
        return Completed(message="done")

    understood = {}
    monkeypatch.setattr(command_flows, "run_command", run_command)
    adapt_cse.fn(labels="intents.csv", budget="45m", shared_backbone=True, overrides={"train.epochs": 2})
    wanted = {"budget": 2700.0, "shared_backbone": True, "sources": (), "task": None, "overrides": ("train.epochs=2",)}
    assert understood.items() >= wanted.items()
    tune_cse.fn(over=["prompt.length=[8,16]"], confirm=2, names=["a"])
    wanted = {"over": ("prompt.length=[8,16]",), "confirm": 2, "names": ("a",), "promote": False}
    assert understood.items() >= wanted.items()


@pytest.mark.parametrize(
    ("flow", "but"),
    [(adapt_cse, {"params"}), (index_cse, {"verify"}), (evaluate_cse, {"params", "style"}),
     (export_cse, {"params"}), (tune_cse, set())],
)  # fmt: skip
def test_a_flow_takes_what_its_command_takes(flow, but):
    properties = parameter_schema(flow).model_dump()["properties"]
    command = {parameter.name: parameter for parameter in cli.get_command(None, flow.name.removesuffix("-cse")).params}
    assert properties.keys() == command.keys() - but
    assert all(found.get("description") for found in properties.values())


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
    assert (changed, settings.train.epochs, settings.prompt.kind) == (True, 3, "key_value")
    assert settings_of_run(params, None, {"train.epochs": 1})[1] is False, "as it is already"
    assert "did you mean 'train.epochs'" in refusal(settings_of_run, params, None, {"train.epoch": 2})
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
    given = {"train.epochs": 2, "prompt.dropout": None, "evaluation.measures": ["sts", "cxc"]}
    assert as_options(given)[1::2] == ["train.epochs=2", "prompt.dropout=null", "evaluation.measures=[sts, cxc]"]


def test_what_is_not_there_is_one_line(repository, monkeypatch):
    def refused(command, *arguments: str) -> str:
        return refusal(CliRunner().invoke, command, arguments, catch_exceptions=False)

    monkeypatch.chdir(repository)
    assert "not up to date; run `dvc repro` first" in refused(models_command, "promote")
    assert "no version registered yet" in refused(models_command, "show")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert "http://127.0.0.1:9/api: the Prefect server does not answer" in refused(flow_command, "train")
