"""Flows of commands pass the right arguments to `cse`; a fake task records them and writes what the command would."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.states import Completed, Failed
from prefect.utilities.callables import parameter_schema

from cse.cli.main import cli
from flows import command_flows
from flows.command_flows import adapt_cse, evaluate_cse, export_cse, index_cse, tune_cse


@pytest.fixture
def ran(monkeypatch) -> dict:
    """What the last flow did: the parameters that its command understood."""
    found = {}

    def run_command(name, arguments, return_state):
        assert (name, return_state) == (arguments[0], True)
        found["given"] = cli.get_command(None, name).make_context(name, arguments[1:]).params
        return Completed(message="done")

    monkeypatch.setattr(command_flows, "run_command", run_command)
    return found


def test_a_table_is_made_by_index(ran):
    given = {"texts": "tickets/*.jsonl", "id_column": "ticket", "workers": 2, "changes": True}
    assert index_cse.fn(out="data/search", **given).message == "done"
    assert ran["given"] == given | {
        "out": "data/search", "model": None, "text_column": None, "domain_column": None, "batch_size": None,
        "provider": "auto", "again": False, "role": None, "title_column": None, "keep_column": (), "encoding": "utf-8",
        "kind": "auto", "verify": False,
    }  # fmt: skip


def test_models_and_tasks_of_ones_own_are_measured(ran):
    models = ["data/checkpoint", "bare=model"]
    evaluate_cse.fn(models=models, tasks=["my-questions", "my-search"], out="runs/mine", json_path="scores.json")
    given = ran["given"]
    assert given["models"] == tuple(models)
    assert given["tasks"] == (Path("my-questions"), Path("my-search"))
    assert (given["out"], given["json_path"], given["data"]) == (Path("runs/mine"), Path("scores.json"), None)


def test_an_adaptation_gets_its_budget_and_settings(ran):
    adapt_cse.fn(labels="intents.csv", budget="45m", shared_backbone=True, out="out", overrides={"train.epochs": 2})
    given = ran["given"]
    assert {name: given[name] for name in ("budget", "shared_backbone", "sources", "task")} == {
        "budget": 2700.0, "shared_backbone": True, "sources": (), "task": None,
    }  # fmt: skip
    assert (str(given["labels"]), str(given["out"]), given["overrides"]) == ("intents.csv", "out", ("train.epochs=2",))


def test_a_sweep_takes_spaces_and_seeds(ran):
    tune_cse.fn(over=["prompt.length=[8,16]"], confirm=2, seeds=3, names=["a"])
    assert {name: ran["given"][name] for name in ("over", "confirm", "seeds", "names", "promote")} == {
        "over": ("prompt.length=[8,16]",), "confirm": 2, "seeds": 3, "names": ("a",), "promote": False,
    }  # fmt: skip


def test_a_failed_command_fails_the_flow(monkeypatch):
    monkeypatch.setattr(command_flows, "run_command", lambda *a, **k: Failed(message="--budget: too short"))
    state = adapt_cse.fn(sources=["manual"])
    assert (state.is_failed(), state.message) == (True, "--budget: too short")


@pytest.mark.parametrize(
    ("flow", "but"),
    [(adapt_cse, {"params"}), (index_cse, {"verify"}), (evaluate_cse, {"params", "style"}),
     (export_cse, {"params"}), (tune_cse, set())],
)  # fmt: skip
def test_a_flow_takes_what_its_command_takes(flow, but):
    properties = parameter_schema(flow).model_dump()["properties"]
    command = {parameter.name: parameter for parameter in cli.get_command(None, flow.name.removesuffix("-cse")).params}
    assert properties.keys() == command.keys() - but
    assert all(properties[name]["description"] == one.help for name, one in command.items() if name == "out")
    assert all(found.get("description") for found in properties.values())


def test_the_form_knows_numbers_choices_and_what_is_required():
    schema = parameter_schema(index_cse).model_dump()
    workers = schema["properties"]["workers"]
    assert (workers["type"], workers["minimum"], workers["default"]) == ("integer", 0, 0)
    assert schema["properties"]["provider"]["enum"] == ["auto", "cpu", "cuda", "openvino"]
    assert schema["required"] == ["out"]
    assert parameter_schema(export_cse).model_dump()["required"] == ["out"], "train-cse writes the pipeline's bundle"
    models = parameter_schema(evaluate_cse).model_dump()["properties"]["models"]
    assert models["default"] == ["data/checkpoint"]
