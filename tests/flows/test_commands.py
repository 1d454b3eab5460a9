"""``cse flow``, ``cse models`` and ``cse tune --promote`` where they need neither a server nor a pipeline."""

from __future__ import annotations

import json

import pytest
from click import unstyle
from click.testing import CliRunner
from prefect.settings import PREFECT_API_URL, temporary_settings

from cse.tune.outcome import to_promote
from flows.commands import flow_command
from flows.models import models_command
from flows.registry import assign, register
from flows.tune import _promote
from tests.flows.repositories import commit, write_json
from tests.parts import refusal


def call(command, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refuses(command, *arguments: str) -> str:
    return refusal(CliRunner().invoke, command, arguments, catch_exceptions=False)


@pytest.fixture
def served(repository, monkeypatch):
    """A repository with two versions, the first in service."""
    monkeypatch.chdir(repository)
    for dev in (80.0, 81.0):
        write_json(repository / "data/metrics/train.json", {"dev_spearman": dev})
        write_json(repository / "data/metrics/evaluation.json", {"trained": {"Avg.": 75.0}})
        model = register(repository, "sentence-encoder", commit(repository, f"dev {dev}"))
        if dev == 80.0:
            assign(repository, model, "production")
    return repository


def test_versions_newest_first_and_one_of_them(served):
    tree = json.loads(call(models_command, "list", "--json"))
    assert [(model["version"], model["scores"]["dev"]) for model in tree] == [("v1.1.0", 81.0), ("v1.0.0", 80.0)]
    assert "version: v1.1.0" in call(models_command, "show")
    assert "dvc get . data/bundle --rev 'sentence-encoder@v1.0.0'" in call(models_command, "show", "production")
    assert json.loads(call(models_command, "show", "1.1.0", "--json"))["stages"] == []
    assert "did you mean 'production'?" in refuses(models_command, "show", "prodution")


def test_a_pipeline_that_is_not_up_to_date_gets_no_version(repository, monkeypatch):
    monkeypatch.chdir(repository)
    assert "not up to date; run `dvc repro` first" in refuses(models_command, "promote")
    assert "no version registered yet; create one with `cse models promote`" in call(models_command, "list")
    assert "no version registered yet" in refuses(models_command, "show")


def test_a_server_that_is_away_is_one_line(repository, monkeypatch):
    monkeypatch.chdir(repository)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert "http://127.0.0.1:9/api: the Prefect server does not answer" in refuses(flow_command, "train")


def test_the_budget_of_a_small_sweep_is_not_promoted(tmp_path, monkeypatch, capsys):
    """What ``cse tune --promote`` writes and prints; for whole sweeps see tests/tune."""
    monkeypatch.chdir(tmp_path)
    text = "data:\n  max_rows: null # all\ntrain:\n  eval_every: 125\n  learning_rate: 0.01\n"
    (tmp_path / "params.yaml").write_text(text)
    values = {"data.max_rows": 500, "train.eval_every": 7, "tune.trials": 3, "train.learning_rate": 0.02}
    _promote(*to_promote(values, ("train.learning_rate",)))
    said = unstyle(capsys.readouterr().out)
    assert (tmp_path / "params.yaml").read_text() == text.replace("0.01", "0.02")
    assert "data.max_rows 500 (params.yaml: null), train.eval_every 7 (params.yaml: 125)" in said
    assert "`dvc repro` trains again" in said and "tune.trials" not in said
