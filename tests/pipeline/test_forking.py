"""Forked commands do what started ones do: folder, arguments, variables, streams, exit codes and signals."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.pipeline.forking import GRAPHS, launchers
from tests.pipeline.workspace import BIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHOW = """
import json, os, resource, sys
imported = sorted({"torch", "transformers", "cse.settings", "flows"} & set(sys.modules))
text = sys.stdin.read()
print("to stderr", file=sys.stderr)
print(json.dumps({"folder": os.getcwd(), "arguments": sys.argv[1:], "own": os.environ.get("OWN"), "imported": imported,
    "names": [__name__, os.path.basename(__file__)], "text": text, "first": sys.path[0],
    "files": resource.getrlimit(resource.RLIMIT_FSIZE)[0], "mask": os.umask(0)}))
"""
END = {
    "code": ("import sys; sys.exit(7)", 7),
    "text": ("import sys; sys.exit('the reason')", 1),
    "error": ("raise ValueError('the reason')", 1),
    "atexit": ("import atexit, os; atexit.register(os._exit, 9)", 9),
    "signal": ("import os; os.kill(os.getpid(), 11)", -11),
}


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


@pytest.mark.parametrize("real", [False, True])
def test_a_forked_command_is_as_a_started_one(folder, environment, real):
    command = (*write(folder, SHOW), "a b", "--c")
    if real:
        environment = environment | {"PATH": environment["PATH"].split(os.pathsep, 1)[1]}
    done = subprocess.run(
        ["sh", "-c", f"umask 027; ulimit -f 5000; {command[0]} -m cse.program 'a b' --c"], cwd=folder, text=True,
        input="ü", capture_output=True, env=environment | {"OWN": "x", "LANG": "C.UTF-8"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "to stderr\n")
    found = json.loads(done.stdout)
    assert found.pop("imported") == ([] if real else ["torch", "transformers"])
    assert found.pop("files") in (5000 * 512, 5000 * 1024)
    assert found == {
        "folder": str(folder), "arguments": ["a b", "--c"], "own": "x", "names": ["__main__", "program.py"],
        "text": "ü", "first": str(folder), "mask": 0o027,
    }  # fmt: skip


@pytest.mark.parametrize("how", END)
def test_how_a_command_ends(folder, environment, how):
    text, code = END[how]
    done = subprocess.run(write(folder, text), cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("the reason" in done.stderr) == ("the reason" in text)


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
