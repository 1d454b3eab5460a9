"""Forked commands do what started ones do: folder, arguments, variables, streams, exit codes and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.pipeline.forking import GRAPHS, launchers
from tests.pipeline.workspace import BIN, ROOT
from tests.waiting import wait_for

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


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_command(folder, environment, sent):
    process = subprocess.Popen(
        write(
            folder,
            "import os, signal, sys, time\nfrom pathlib import Path\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nPath('pid').write_text(str(os.getpid()))\n"
            "time.sleep(200)",
        ),
        cwd=folder, env=environment,
    )  # fmt: skip
    wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), 120)
    pid = int((folder / "pid").read_text())
    assert pid != process.pid
    process.send_signal(sent)
    assert process.wait(30) == (5 if sent == signal.SIGTERM else -sent)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), 30)


def test_two_at_a_time_on_one_server(folder, environment):
    command = write(folder, "import os, time; print(os.getppid()); time.sleep(2); print(os.getpid())")
    begun = time.monotonic()
    both = [subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert len({process.communicate()[0] for process in both}) == 2
    assert [process.returncode for process in both] == [0, 0]
    assert time.monotonic() - begun < 60


def test_the_script_and_other_commands(folder, environment):
    help_text = subprocess.run(["cse", "--help"], cwd=folder, env=environment | {"PYTHONPATH": str(ROOT)},
                               capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "adapt" in help_text
    show = "import sys, yaml; print(sys.executable, 'tor' + 'ch' in sys.modules, yaml.__file__)"
    started = subprocess.run(["python", "-c", show], cwd=folder, env=environment, capture_output=True, text=True,
                             check=True).stdout  # fmt: skip
    bin_folder = launchers(str(BIN / "python"))
    executable, imported, found = started.split()
    assert (executable, imported) == (f"{bin_folder}/python", "False")
    assert Path(found).is_relative_to(bin_folder.parent), "started, with the packages of the environment"
    code = (
        "import sys; from cse.program import here; print(__name__, sys.argv, here, 'torch' in sys.modules); sys.exit(3)"
    )
    write(folder, "here = 5")
    forked = subprocess.run(
        ["python", "-c", code, "a", "-b"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (forked.stdout, forked.returncode) == ("__main__ ['-c', 'a', '-b'] 5 True\n", 3)


def test_what_a_command_finds_first(folder, environment):
    """PYTHONPATH comes behind the folder of a module or script, as ever."""
    (folder / "other/cse").mkdir(parents=True)
    (folder / "other/beside.py").write_text("here = 'beside'")
    (folder / "other/cse/__init__.py").write_text("raise SystemExit('the wrong one')")
    command = write(folder, "import beside; print(beside.here)")
    done = subprocess.run(command, cwd=folder, env=environment | {"PYTHONPATH": str(folder / "other")}, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("beside\n", "")


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
