"""The flow ``adapt-cse`` passes the right arguments to `cse`; a fake task records them."""

from __future__ import annotations

import pytest
from prefect.states import Completed, Failed
from prefect.utilities.callables import parameter_schema

from cse.cli.main import cli
from flows import command_flows as module

SUMMARY = "It helped: intents MAP rose by 4.20.\n  more\n"


@pytest.fixture
def said(monkeypatch, tmp_path) -> list[list[str]]:
    """The arguments of each `cse` that the flow runs, and its artifacts after them."""
    calls: list[list[str]] = []

    def run_command(name, arguments, return_state):
        calls.append(arguments)
        (tmp_path / "out").mkdir()
        (tmp_path / "out/summary.txt").write_text(SUMMARY)
        return Completed(message="done")

    monkeypatch.setattr(module, "run_command", run_command)
    monkeypatch.setattr(module, "find_root", lambda: tmp_path)
    monkeypatch.setattr(module, "create_markdown_artifact", lambda text, key: calls.append([key, text]))
    return calls


def test_the_command_gets_what_the_flow_was_given(said):
    state = module.adapt_cse.fn(
        labels="intents.csv", budget="45m", shared_backbone=True, out="out", overrides={"train.epochs": 2}
    )
    assert state.message == "It helped: intents MAP rose by 4.20."
    arguments, artifact = said
    given = cli.get_command(None, "adapt").make_context("adapt", arguments[1:]).params
    assert {name: given[name] for name in ("labels", "budget", "shared_backbone", "sources", "task")} == {
        "labels": given["labels"], "budget": 2700.0, "shared_backbone": True, "sources": (), "task": None,
    }  # fmt: skip
    assert (str(given["labels"]), str(given["out"]), given["overrides"]) == ("intents.csv", "out", ("train.epochs=2",))
    assert artifact == ["adaptation", f"```\n{SUMMARY}```\n"]


def test_a_failed_command_fails_the_flow(monkeypatch):
    monkeypatch.setattr(module, "run_command", lambda *a, **k: Failed(message="--budget: too short"))
    state = module.adapt_cse.fn(sources=["manual"])
    assert (state.is_failed(), state.message) == (True, "--budget: too short")


def test_the_flow_takes_what_the_command_takes():
    command = {parameter.name for parameter in cli.get_command(None, "adapt").params}
    assert parameter_schema(module.adapt_cse).model_dump()["properties"].keys() == command - {"params"}
