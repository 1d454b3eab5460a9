"""The dashboard: metrics that the server has, panels that explain themselves and do not overlap."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

from deploy.server.metrics import names

METRICS = names()

BOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana.json").read_text(encoding="utf-8"))
SHOWN = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
GIVEN = {"__rate_interval", "__all"}  # by Grafana


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\bcse_\w+", text))


def family(metric: str) -> str:
    """The name that a metric's series share."""
    return re.sub(r"_(bucket|sum|count)$", "", metric)


def expressions() -> list[str]:
    return [target["expr"] for panel in SHOWN for target in panel["targets"]]


def test_every_metric_is_one_of_the_servers():
    used = set().union(*map(metrics_in, expressions()))
    assert used <= METRICS
    assert len(set(map(family, used))) >= 15
    for variable in VARIABLES.values():
        assert metrics_in(json.dumps(variable)) <= METRICS


def test_variables_are_defined():
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - GIVEN
    assert used == set(VARIABLES)
    assert VARIABLES["datasource"]["type"] == "datasource"


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
