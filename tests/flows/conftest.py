"""Fixtures for tests of the flows."""

from pathlib import Path

import pytest

from tests.flows.prefect_server import share_database
from tests.flows.repositories import DVC_YAML, commit, copy, dvc, git_init, keep_apart, write


@pytest.fixture(scope="session", autouse=True)
def prefect_database(shared_folder) -> None:
    """One database for all homes of Prefect."""
    share_database(shared_folder)


@pytest.fixture(scope="session")
def first_commit(tmp_path_factory) -> Path:
    """A repository of two stages, the later one named first, with one commit; copy it, as ``repository`` does."""
    root = tmp_path_factory.mktemp("repository") / "project"
    write(root / "source.txt", "text\n")
    write(root / "score.json", '{"dev_spearman": 1.0}')
    write(root / "dvc.yaml", DVC_YAML)
    write(root / "params.yaml", "train:\n  epochs: 1 # a comment\n")
    write(root / "data/metrics/.gitkeep", "")
    with pytest.MonkeyPatch.context() as patch:
        keep_apart(patch, root.parent)
        git_init(root)
        dvc(root, "init", "--quiet")
        write(root / ".dvc/config", "[core]\n    remote = local\n['remote \"local\"']\n    url = ../../remote\n")
        commit(root, "first")
    return root


@pytest.fixture
def repository(first_commit, tmp_path, monkeypatch) -> Path:
    """A repository of two stages, the later one named first, with one commit."""
    keep_apart(monkeypatch, tmp_path)
    return copy(first_commit, tmp_path / "project")
