"""Flows of commands pass the right arguments to `cse`; real runs: test_deployments.py."""

from __future__ import annotations

import pytest
from prefect.states import Completed
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


def test_an_adaptation_gets_its_budget_and_settings(ran):
    adapt_cse.fn(labels="intents.csv", budget="45m", shared_backbone=True, out="out", overrides={"train.epochs": 2})
    given = ran["given"]
    assert (given["budget"], given["shared_backbone"], given["sources"], given["task"]) == (2700.0, True, (), None)
    assert (str(given["labels"]), str(given["out"]), given["overrides"]) == ("intents.csv", "out", ("train.epochs=2",))


def test_a_sweep_takes_spaces_and_seeds(ran):
    tune_cse.fn(over=["prompt.length=[8,16]"], confirm=2, seeds=3, names=["a"])
    assert {name: ran["given"][name] for name in ("over", "confirm", "seeds", "names", "promote")} == {
        "over": ("prompt.length=[8,16]",), "confirm": 2, "seeds": 3, "names": ("a",), "promote": False,
    }  # fmt: skip


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
