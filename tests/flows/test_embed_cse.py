"""The flow ``embed-cse`` passes the right arguments to `cse`; a fake task records them."""

from __future__ import annotations

import pytest
from prefect.states import Completed
from prefect.utilities.callables import parameter_schema

from cse.cli.main import cli
from flows import command_flows as module


@pytest.fixture
def said(monkeypatch) -> list[list[str]]:
    """The arguments of each `cse` that the flow runs."""
    calls: list[list[str]] = []

    def run_command(name, arguments, return_state):
        calls.append(arguments)
        return Completed(message="done")

    monkeypatch.setattr(module, "run_command", run_command)
    return calls


def test_a_folder_is_made_by_embed(said):
    state = module.embed_cse.fn(
        out="data/vectors", corpus="tickets/*.jsonl", id_column="ticket", keep_text=True, workers=0, index=True
    )
    assert state.message == "done"
    (arguments,) = said
    context = cli.get_command(None, "embed").make_context("embed", arguments[1:])
    assert context.params == {
        "corpus": "tickets/*.jsonl", "out": "data/vectors", "model": "data/bundle", "text_column": "text",
        "id_column": "ticket", "domain_column": None, "keep_text": True, "shard_rows": 8192, "workers": 0,
        "batch_size": None, "provider": "auto", "normalize": True, "index": True, "again": False, "role": None,
        "title_column": None, "keep_column": (), "encoding": "utf-8",
    }  # fmt: skip


def test_the_flow_takes_what_the_command_takes():
    properties = parameter_schema(module.embed_cse).model_dump()["properties"]
    command = {parameter.name: parameter for parameter in cli.get_command(None, "embed").params}
    assert properties.keys() == command.keys()
    rows = properties["shard_rows"]
    assert (rows["type"], rows["minimum"], rows["default"]) == ("integer", 1, 8192)
    assert rows["description"] == command["shard_rows"].help
    assert properties["provider"]["enum"] == ["auto", "cpu", "cuda", "openvino"]
