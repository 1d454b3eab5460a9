"""Forked commands do what started ones do: folder, arguments, variables, streams, exit codes and signals."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.pipeline.forking import GRAPHS, launchers
from tests.pipeline.workspace import BIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Nothing of what the test runner was started with."""
    path = [str(launchers(str(BIN / "python"))), str(BIN), "/usr/local/bin", "/usr/bin", "/bin"]
    return {"PATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "HOME": "/nowhere"}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with a package ``cse`` of its own."""
    (tmp_path / "cse").mkdir()
    (tmp_path / "cse/__init__.py").touch()
    return tmp_path


def write(folder: Path, text: str) -> tuple[str, str, str]:
    (folder / "cse/program.py").write_text(text)
    return ("python", "-m", "cse.program")


TRACE = """
from pathlib import Path

EXTERNAL_DATA_BYTES = 5

def _export(module, given, path):
    with open("traced", "a") as file:
        file.write("x")
    path.write_bytes(b"graph of %d" % module)
"""
USE = """
from pathlib import Path
from cse.export import graph

graph._export(7, {}, Path("graph.onnx"))
"""


def test_a_graph_is_traced_once_until_the_code_changes(folder, environment, tmp_path_factory):
    """A real command traces whatever is remembered."""
    for name, text in (("export/graph.py", TRACE), ("export/__init__.py", ""), ("model/layer.py", "")):
        (folder / "cse" / name).parent.mkdir(exist_ok=True)
        (folder / "cse" / name).write_text(text)
    command, traced, written = write(folder, USE), folder / "traced", folder / "graph.onnx"
    environment = environment | {GRAPHS: str(tmp_path_factory.mktemp("graphs") / "of-a-run")}
    real = environment | {"PATH": str(BIN)}
    for change, variables, times in (
        ("", environment, 1),
        ("", environment, 1),
        ("", real, 2),
        ("x = 1", environment, 3),
    ):
        (folder / "cse/model/layer.py").write_text(change)
        written.unlink(missing_ok=True)
        subprocess.run(command, cwd=folder, env=variables, check=True)
        assert (written.read_bytes(), len(traced.read_text())) == (b"graph of 7", times)
