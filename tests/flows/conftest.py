"""Fixtures for tests of the flows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.prefect_server import share_database
from tests.flows.repositories import DVC_YAML, commit, git_init, write


@pytest.fixture(scope="session", autouse=True)
def prefect_database(shared_folder) -> None:
    """One database for all homes of Prefect."""
    share_database(shared_folder)


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository of two stages, the later one named first, with one commit."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    root = tmp_path / "project"
    write(root / "source.txt", "text\n")
    write(root / "score.json", '{"dev_spearman": 1.0}')
    write(root / "dvc.yaml", DVC_YAML)
    write(root / "params.yaml", "train:\n  epochs: 1 # a comment\n")
    write(root / "data/metrics/.gitkeep", "")
    git_init(root)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=root, check=True)
    write(root / ".dvc/config", "[core]\n    remote = local\n['remote \"local\"']\n    url = ../../remote\n")
    commit(root, "first")
    return root
