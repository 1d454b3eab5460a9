"""Flows of commands pass the right arguments to `cse`; real runs: test_deployments.py."""

from __future__ import annotations

import pytest
from prefect.states import Completed
from prefect.utilities.callables import parameter_schema

from cse.cli.main import cli
from flows import command_flows
from flows.command_flows import adapt_cse, evaluate_cse, export_cse, index_cse

SUMMARY = "It helped: intents MAP rose by 4.20.\n  more\n"


@pytest.fixture
def ran(monkeypatch, tmp_path) -> dict:
    """What the last flow did: the parameters that its command understood, and the artifacts by key."""
    found = {}

    def run_command(name, arguments, return_state):
        assert (name, return_state) == (arguments[0], True)
        found["given"] = cli.get_command(None, name).make_context(name, arguments[1:]).params
        (tmp_path / "out").mkdir()
        (tmp_path / "out/summary.txt").write_text(SUMMARY)
        return Completed(message="done")

    monkeypatch.setattr(command_flows, "run_command", run_command)
    monkeypatch.setattr(command_flows, "find_root", lambda: tmp_path)
    monkeypatch.setattr(command_flows, "create_markdown_artifact", lambda text, key: found.update({key: text}))
    return found


def test_an_adaptation_ends_with_its_verdict(ran):
    state = adapt_cse.fn(
        labels="intents.csv", budget="45m", shared_backbone=True, out="out", overrides={"train.epochs": 2}
    )
    assert state.message == "It helped: intents MAP rose by 4.20."
    given = ran["given"]
    assert (given["budget"], given["shared_backbone"], given["sources"], given["task"]) == (2700.0, True, (), None)
    assert (str(given["labels"]), str(given["out"]), given["overrides"]) == ("intents.csv", "out", ("train.epochs=2",))
    assert ran["adaptation"] == f"```\n{SUMMARY}```\n"


@pytest.mark.parametrize(
    ("flow", "but"),
    [(adapt_cse, {"params"}), (index_cse, {"verify"}), (evaluate_cse, {"params", "style"}),
     (export_cse, {"params"})],
)  # fmt: skip
def test_a_flow_takes_what_its_command_takes(flow, but):
    properties = parameter_schema(flow).model_dump()["properties"]
    command = {parameter.name: parameter for parameter in cli.get_command(None, flow.name.removesuffix("-cse")).params}
    assert properties.keys() == command.keys() - but
    assert properties["out"]["description"] == command["out"].help
    assert all(found.get("description") for found in properties.values())
