"""The small installation: `cse[serve,cpu]` in a new environment, from the wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cse.runtime.onnx_encoder import OnnxEncoder
from tests.runtime.conftest import write_bundle

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LINES = ["the cat sat", "", "a dog on mat", "the cat sat"]
LEFT_OUT = {"torch", "transformers", "ray", "prefect", "dvc", "datasets", "pyarrow", "onnxruntime-gpu", "scipy"}
IMPORT_SECONDS = 0.5
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def worked(*command: object, stdin: str = "") -> str:
    done = subprocess.run(
        [*map(str, command)], input=stdin, capture_output=True, text=True, timeout=600, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Path:
    """The programs of a virtual environment with the project's wheel and nothing but the server's extras.

    The wheel is built outside the tree, so that no old ``build/`` gets in.
    """
    folder = tmp_path_factory.mktemp("server")
    for name in ("cse", "flows", "deploy"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    worked(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, folder / "source")
    (wheel,) = folder.glob("*.whl")
    worked(sys.executable, "-m", "venv", folder / "venv")
    pip = [folder / "venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
    worked(*pip, "-c", ROOT / "constraints.txt", f"{wheel}[serve,cpu]")
    return folder / "venv/bin"


def test_training_packages_are_left_out_and_the_runtime_imports_quickly(server):
    listed = worked(server / "python", "-m", "pip", "list", "--format=json")
    names = {package["name"].lower() for package in json.loads(listed)}
    assert {"cse", "onnxruntime", "tokenizers"} <= names
    assert names & LEFT_OUT == set()
    # processor time, which other work on the machine does not stretch
    script = "import time, cse.runtime.onnx_encoder; print(time.process_time())"
    seconds = [float(worked(server / "python", "-c", script)) for _ in range(5)]
    assert min(seconds) < IMPORT_SECONDS, seconds


def test_the_server_installation_helps_serves_and_encodes(server, tmp_path):
    bundle = write_bundle(tmp_path / "bundle")
    expected = OnnxEncoder(bundle, provider="cpu").encode(LINES)
    assert re.search(r"^  encode +Embed TEXT", worked(server / "cse", "--help"), re.MULTILINE)
    assert "cse serve" in worked(server / "cse", "serve", "--help")
    worked(server / "cse", "encode", bundle, "--out", tmp_path / "x.npy", stdin="\n".join(LINES) + "\n")
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-6)
