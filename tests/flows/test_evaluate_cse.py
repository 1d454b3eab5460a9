"""The flow ``evaluate-cse`` passes the right arguments to `cse`; a fake task records them and writes scores."""

from __future__ import annotations

import json
from pathlib import Path

from prefect.states import Completed

from cse.cli.main import cli
from flows import command_flows as module

SCORES = {
    "data/checkpoint": {
        "sts": {"STS12": {"all": 71.234}, "STS13": {"all": 80.0}},
        "average": {"all": 75.617},
        "tasks": {"intents": {"main": "kNN", "values": {"kNN": 91.506, "MAP": 54.0}}},
    }
}


def test_models_and_tasks_of_ones_own_become_a_table(monkeypatch):
    said: list[list[str]] = []
    tables: dict[str, list] = {}

    def run_command(name, arguments, return_state):
        said.append(arguments)
        Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps(SCORES), encoding="utf-8")
        return Completed(message="done")

    monkeypatch.setattr(module, "run_command", run_command)
    monkeypatch.setattr(module, "create_table_artifact", lambda table, key: tables.update({key: table}))
    state = module.evaluate_cse.fn(
        models=["data/checkpoint", "bare=model"], tasks=["my-questions", "my-search"], out="runs/mine"
    )
    assert state.message == "done"
    given = cli.get_command(None, "evaluate").make_context("evaluate", said[0][1:]).params
    assert given["models"] == ("data/checkpoint", "bare=model")
    assert given["tasks"] == (Path("my-questions"), Path("my-search"))
    assert (given["out"], given["data"], given["suite"]) == (Path("runs/mine"), None, None)
    assert tables["scores"] == [
        {"model": "data/checkpoint", "STS12": 71.23, "STS13": 80.0, "average": 75.62, "intents (kNN)": 91.51}
    ]
