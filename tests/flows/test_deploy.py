"""What a worker does to its fresh clone before the flow starts."""

from __future__ import annotations

import pytest

from flows.repository import git
from flows.workspace import keep_remotes
from tests.flows.repositories import commit, dvc, write
from tests.parts import refusal


def remote_of(folder) -> str:
    return dvc(folder, "remote", "list").replace("\n", "")  # DVC breaks long lines


@pytest.fixture
def clone(repository, tmp_path):
    folder = tmp_path / "far/away/clone"
    folder.parent.mkdir(parents=True)
    git(repository, "clone", "--quiet", "--depth", "1", repository.as_uri(), str(folder))
    return folder


def test_the_folder_beside_the_project_stays_the_remote(repository, clone, tmp_path):
    assert str(tmp_path / "far/away/remote") in remote_of(clone), "without the step: beside the clone"
    assert keep_remotes(str(clone), str(repository)) == {"directory": str(clone)}
    assert str(tmp_path / "remote") in remote_of(clone)
    assert "far/away" not in remote_of(clone)
    assert git(clone, "status", "--short") == ""
    write(repository / ".dvc/config.local", f"['remote \"local\"']\n    url = {tmp_path}/mine\n")
    keep_remotes(str(clone), str(repository))
    assert str(tmp_path / "mine") in remote_of(clone), "a remote of one's own counts too"


def test_a_shared_remote_stays_as_it_is(repository, clone):
    write(repository / ".dvc/config", "[core]\n    remote = s\n['remote \"s\"']\n    url = s3://bucket/path\n")
    commit(repository, "shared")
    git(clone, "pull", "--quiet")
    keep_remotes(str(clone), "/nowhere")
    assert "s3://bucket/path" in remote_of(clone)


def test_a_folder_of_another_machine_is_refused(clone):
    told = refusal(keep_remotes, str(clone), "/nowhere/project")
    assert "'local' is a folder on the machine you deployed from; add one" in told
