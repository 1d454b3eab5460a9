"""What a deployment knows about its project."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from flows.repository import git
from tests.pipeline.workspace import ROOT


@pytest.fixture
def deploy(monkeypatch):
    """The module as a worker loads it: without making work pools."""
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a-run")
    import flows.deploy

    return flows.deploy


def test_where_workers_get_the_project_from(deploy, repository, monkeypatch):
    (repository / "data/deep").mkdir()
    monkeypatch.chdir(repository / "data/deep")
    folder = str(repository.resolve())
    assert deploy.source() == {"folder": folder, "repository": f"file://{folder}", "branch": "main"}
    git(repository, "remote", "add", "origin", "https://example.org/team/cse.git")
    git(repository, "checkout", "--quiet", "--detach")
    found = deploy.source()
    assert found["repository"] == "https://example.org/team/cse.git"
    assert found["branch"] is None, "the default branch"


def test_prefect_yaml_names_what_is_there(deploy):
    tree = YAML(typ="safe").load((ROOT / "prefect.yaml").read_text())
    flows = {*deploy.__all__} - {"source"}
    assert {found["entrypoint"] for found in tree["deployments"]} == {f"flows/deploy.py:{name}" for name in flows}
    for found in tree["deployments"]:
        assert found["work_pool"]["name"] in deploy.POOLS
        assert "command" not in found["work_pool"].get("job_variables", {})
        assert not any(schedule["active"] for schedule in found.get("schedules", ()))
