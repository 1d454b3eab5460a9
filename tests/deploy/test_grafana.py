"""The dashboard: metrics that the server has, panels that explain themselves and do not overlap."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

METRICS = {
    "cse_requests_total",
    "cse_request_seconds",
    "cse_queue_tokens",
    "cse_queue_texts",
    "cse_batch_tokens",
    "cse_batch_texts",
    "cse_compute_seconds",
    "cse_queue_seconds",
    "cse_texts_total",
    "cse_tokens_total",
    "cse_truncated_texts_total",
    "cse_refused_total",
    "cse_model_info",
    "cse_model_load_failures_total",
    "cse_drift_distance",
    "cse_connections",
}

BOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana.json").read_text(encoding="utf-8"))
SHOWN = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
GIVEN = {"__rate_interval", "__all"}  # by Grafana


def metrics_in(expression: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bcse_\w+", expression)}


def expressions() -> list[str]:
    return [target["expr"] for panel in SHOWN for target in panel["targets"]]


def test_every_metric_is_one_of_the_servers_and_all_are_shown():
    assert set().union(*map(metrics_in, expressions())) == METRICS
    for variable in VARIABLES.values():
        assert metrics_in(json.dumps(variable)) <= METRICS


def test_variables_are_defined():
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - GIVEN
    assert used == set(VARIABLES)
    assert VARIABLES["datasource"]["type"] == "datasource"


@pytest.mark.parametrize("panel", SHOWN, ids=lambda panel: panel["title"])
def test_a_panel_explains_itself(panel):
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        assert target["expr"].count("(") == target["expr"].count(")")
        assert target["expr"].count("{") == target["expr"].count("}")


def test_ids_and_titles_are_unique():
    for key in ("id", "title"):
        found = [panel[key] for panel in BOARD["panels"]]
        assert len(set(found)) == len(found)
    assert BOARD["schemaVersion"] >= 39


def test_panels_do_not_overlap():
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
