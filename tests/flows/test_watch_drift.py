"""Flow ``watch-drift``: one event for each version of a model that has drifted, and one line for each failure."""

from __future__ import annotations

import logging

import pytest

from flows import watch_drift as module
from flows.watch_drift import EVENT, watch_drift
from tests.flows.drift_server import drift_server


@pytest.fixture
def run(repository, monkeypatch):
    """Run the flow's function in the repository, and return its state and the events it emitted."""
    monkeypatch.chdir(repository)
    monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("flow"))

    def go(url, **parameters):
        events = []
        monkeypatch.setattr(module, "emit_event", lambda **event: events.append(event))
        return watch_drift.fn(url, **parameters), events

    return go


def model(name="tickets", version="v1.0.0", distance=0.3, texts=1000):
    return {"model": name, "version": version, "distance": distance, "texts": texts}


def test_each_version_is_reported_once(run):
    with drift_server(models=[model(), model("invoices", distance=0.1)]) as url:
        state, events = run(url)
        assert state.is_completed()
        assert state.message == "drifted: tickets v1.0.0, distance 0.300 over 1000 texts"
        ((event, resource, payload),) = [tuple(found.values()) for found in events]
        assert event == EVENT
        assert resource == {"prefect.resource.id": "cse.model.tickets", "cse.model-version": "v1.0.0"}
        assert (payload["url"], payload["distance"], payload["texts"]) == (url, 0.3, 1000)
        state, events = run(url)
        assert (state.is_completed(), events) == (True, [])
        assert "reported before: tickets v1.0.0" in state.message
    with drift_server(models=[model(version="v1.1.0"), model("invoices")]) as url:
        assert [found["resource"]["prefect.resource.id"] for found in run(url)[1]] == [
            "cse.model.tickets", "cse.model.invoices"
        ]  # fmt: skip
        assert run(url)[1] == []


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({"distance": 0.2}, {}),
        ({"texts": 999}, {}),
        ({"distance": None}, {}),
        ({}, {"threshold": 0.31}),
        ({}, {"texts": 1001}),
    ],
)
def test_what_is_no_drift(run, changes, parameters):
    with drift_server(models=[model(**changes)]) as url:
        state, events = run(url, **parameters)
    assert (state.is_completed(), events) == (True, [])
    assert state.message.startswith("no drift: tickets v1.0.0, ")


def test_a_server_without_a_model(run):
    with drift_server(models=[]) as url:
        assert run(url)[0].message == "no drift: the server has no model"


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (404, {"error": {"message": "this server was started without --drift"}}, "without --drift; start the server"),
        (500, {}, "500"),
        (200, {"status": "ok"}, "not the answer of an embedding server"),
        (200, {"models": [{}]}, "not the answer of an embedding server"),
    ],
)
def test_servers_that_say_nothing_of_drift(run, status, answer, said):
    with drift_server(status, **answer) as url:
        state, events = run(url)
        assert (state.is_failed(), events) == (True, [])
        assert said in state.message
        assert "no answer of an embedding server" in run(f"{url}/other")[0].message


def test_no_server(run):
    with drift_server() as url:
        pass
    state, _ = run(url)
    assert state.is_failed()
    assert "no answer of an embedding server" in state.message
    assert "\n" not in state.message
    assert run("not an address")[0].is_failed()
