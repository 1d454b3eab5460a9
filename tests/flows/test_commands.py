"""``cse flow`` and ``cse models`` where they need neither a server nor a pipeline; versions: test_train_cse.py."""

from __future__ import annotations

from click.testing import CliRunner
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.commands import flow_command
from flows.models import models_command
from tests.parts import refusal


def test_what_is_not_there_is_one_line(repository, monkeypatch):
    def refused(command, *arguments: str) -> str:
        return refusal(CliRunner().invoke, command, arguments, catch_exceptions=False)

    monkeypatch.chdir(repository)
    assert "not up to date; run `dvc repro` first" in refused(models_command, "promote")
    assert "no version registered yet" in refused(models_command, "show")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert "http://127.0.0.1:9/api: the Prefect server does not answer" in refused(flow_command, "train")
