"""Small git and DVC repositories for tests of the flows."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.repository import git

DVC_YAML = """
artifacts:
  sentence-encoder: {path: data/bundle}
stages:
  second:
    cmd: cp data/first.txt data/second.txt
    deps: [data/first.txt]
    outs: [data/second.txt]
  first:
    cmd: cp source.txt data/first.txt && cp score.json data/metrics/train.json
    deps: [source.txt]
    outs: [data/first.txt]
    metrics:
      - data/metrics/train.json: {cache: false}
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_json(path: Path, tree: Any) -> None:
    write(path, json.dumps(tree))


def git_init(root: Path) -> None:
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "config", "user.name", "Ada")
    git(root, "config", "user.email", "ada@example.org")


def commit(root: Path, message: str) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", message)
    return git(root, "rev-parse", "HEAD")


def keep_apart(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep git and DVC from the user's settings and from the caches of others."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        patch.setenv(name, "/dev/null")
    patch.setenv("DVC_SITE_CACHE_DIR", str(folder / "site"))


def dvc(root: Path, *arguments: str) -> str:
    """Run DVC in this process, whose start costs ten times what it does here, and return what it prints."""
    from dvc.cli import main

    printed = io.StringIO()
    with contextlib.chdir(root), contextlib.redirect_stdout(printed):
        assert main(list(arguments)) == 0, printed.getvalue()
    return printed.getvalue()


def copy(root: Path, to: Path) -> Path:
    """Copy a repository: making one, and DVC's folder in it, takes a second."""
    shutil.copytree(root, to, symlinks=True)
    git(to, "update-index", "--refresh", "-q")  # it knows its files by their inodes
    return to
