"""Commands of Python that need no import of torch: a server that has done it forks one process for each.

``launchers()`` makes an environment whose ``cse``, ``dvc`` and ``python`` are launchers: put its folder ``bin`` first
in ``PATH``. The project, code (``-c``) that uses it, DVC and Ray's workers are forked. A launcher connects to the
server of its variables, which it starts if there is none, and hands over its folder, arguments, variables and standard
streams. The command's exit code or signal becomes the launcher's; signals go to the command, and a launcher that is
killed takes it with it. What differs from a real start: what is imported already (nothing of the project, of Ray or of
Prefect), rarer collections of cycles, and graphs that a test run has traced (``tests/export/memo.py``).

Whatever else ``python`` is asked for starts for real, such as Prefect's workers. Both name the launcher as their Python
(an environment is where its Python is called from), so that the stages that they run are forked too.
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any

# what the stages import that costs time; not onnxruntime, which starts a thread
PRELOADED = (
    "numpy", "pyarrow", "scipy.stats", "sklearn.linear_model", "onnx", "tokenizers", "torch",
    "transformers.models.auto.modeling_auto", "transformers.models.bert.modeling_bert",
    "onnxscript", "torch.onnx._internal.exporter._core", "torch._functorch.aot_autograd", "networkx", "dvc.cli.parser",
    "dvc.repo.reproduce", "dvc.repo.experiments", "dvc.stage.run", "dvc_data.index",
)  # fmt: skip
# what no import looks at; every other variable has a server of its own
FREE = re.compile(
    "_|SPT_NOENV|PWD|OLDPWD|SHLVL|PATH|PYTHONPATH|COLUMNS|NO_COLOR|DO_NOT_TRACK|(PYTEST|DVC|GIT|PREFECT|CSE|AWS|RAY|HAYSTACK|MLFLOW)_.*"
)
OWN = re.compile(
    r"-m (cse|flows|dvc)\b|-c .*\b(cse|flows|torch)\b|(-u )?\S+/ray/_private/workers/default_worker\.py ", re.DOTALL
)
GRAPHS = "CSE_TEST_GRAPHS"  # the variable with the folder of the graphs that a test run has traced
IDLE = 600.0  # seconds after which a server ends
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@functools.cache
def launchers(python: str) -> Path:
    """Make an environment of launchers beside an interpreter's own, and return its folder ``bin``.

    It and its servers end with this process.
    """
    folder, real = Path(tempfile.mkdtemp(prefix="forking-")), Path(python).parents[1]
    (folder / "bin").mkdir()
    (folder / "lib").symlink_to(real / "lib")
    shutil.copyfile(real / "pyvenv.cfg", folder / "pyvenv.cfg")
    (folder / "bin/activate").write_text(f"export PATH={folder}/bin:$PATH\n")  # as a reader's shell does it
    for name in ("cse", "dvc", "python"):
        launcher = folder / "bin" / name
        launcher.write_text(
            f"#!{python} -IS\nimport runpy, sys\n"
            f"sys.argv[1:1] = ['launch', {str(folder)!r}, {str(Path(python).parent)!r}, {name!r}]\n"
            f"runpy.run_path({__file__!r}, run_name='__main__')\n"
        )
        launcher.chmod(0o755)
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and end_servers(folder))
    return folder / "bin"


def end_servers(folder: Path) -> None:
    """End every server of a folder of launchers, and remove it."""
    for file in folder.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(file.read_text()), signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)


# ---- the launcher: only the standard library, so that it starts in milliseconds ------------------------------------


def launch(folder: str, bin_folder: str, name: str, arguments: list[str]) -> None:
    """Run a command in a child of the server, or start the real one if it is none of the project's."""
    real = f"{bin_folder}/{name}"
    if name == "python" and not OWN.match(" ".join(arguments)):
        # Ray's dashboard starts its modules by its own Python, and not by a launcher
        plain = "/ray/dashboard/" in " ".join(arguments)
        os.execv(real, [real if plain else f"{folder}/bin/python", *arguments])
    request = {
        "folder": str(Path.cwd()), "environment": dict(os.environ),
        "python": f"{folder}/bin/python", "arguments": arguments if name == "python" else [real, *arguments],
    }  # fmt: skip
    connection = _connect(folder, f"{bin_folder}/python")
    for number in SIGNALS:
        signal.signal(number, lambda received, frame: connection.sendall(bytes([received])))
    text = json.dumps(request).encode()
    while (free := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # Ray's workers are started without an input; it takes the lowest number
    os.close(free)
    socket.send_fds(connection, [len(text).to_bytes(4, "big")], [0, 1, 2])
    connection.sendall(text)
    answer = connection.recv(4)
    if len(answer) < 4:
        sys.exit("forking: the server ended before the command did")
    code = int.from_bytes(answer, "big", signed=True)
    if code >= 0:
        os._exit(code)
    with contextlib.suppress(OSError):  # of SIGKILL, which has no handler
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def _connect(folder: str, python: str) -> socket.socket:
    """Return a connection to the server of this environment, started if there is none."""
    kept = {name: value for name, value in sorted(os.environ.items()) if not FREE.fullmatch(name)}
    stem = Path(folder) / hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]
    address = str(stem.with_suffix(".socket"))
    connection = socket.socket(socket.AF_UNIX)
    with stem.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(address)
        except OSError:
            Path(address).unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen(64)
            with stem.with_suffix(".log").open("ab") as log:
                subprocess.Popen(
                    [python, __file__, "serve", str(listener.fileno()), str(stem)], env=kept, cwd="/", stdout=log,
                    stderr=log, stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()], start_new_session=True,
                )  # fmt: skip
            listener.close()
            connection.connect(address)
    return connection


# ---- the server ---------------------------------------------------------------------------------------------------


def serve(number: int, stem: Path) -> dict[str, Any]:
    """Fork for each connection until none comes for a while; returns, in a child only, the request to run."""
    stem.with_suffix(".pid").write_text(str(os.getpid()))
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    listener = socket.socket(fileno=number)
    quiet_since = time.monotonic()
    while True:
        if _children_run():
            quiet_since = time.monotonic()
        if select.select([listener], [], [], 1)[0]:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                return _keep(connection)
            connection.close()
        elif time.monotonic() - quiet_since > IDLE or not stem.with_suffix(".lock").exists():
            _end(listener, stem)


def _children_run() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _end(listener: socket.socket, stem: Path) -> None:
    """Leave, unless a launcher is connecting: it holds the lock while it does."""
    with contextlib.suppress(FileNotFoundError), stem.with_suffix(".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if select.select([listener], [], [], 0)[0]:
            return
        for suffix in (".socket", ".pid"):
            stem.with_suffix(suffix).unlink()
    os._exit(0)


def _keep(connection: socket.socket) -> dict[str, Any]:
    """Fork the process of a request and look after it; returns, in that process only, the request."""
    length, streams, _, _ = socket.recv_fds(connection, 4, 3)
    text = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
    child = os.fork()
    if not child:
        connection.close()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        return json.loads(text)
    for stream in (*streams, 0, 1, 2):  # whoever reads waits for the child alone
        os.close(stream)
    ended = os.pidfd_open(child)
    while ended not in select.select([ended, connection], [], [])[0]:
        numbers = connection.recv(64)
        for number in numbers or [signal.SIGKILL]:  # nothing: the launcher is gone
            os.kill(child, number)
        if not numbers:
            break
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(OSError):
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
    os._exit(0)


# ---- the child ----------------------------------------------------------------------------------------------------


def prepare(request: dict[str, Any]) -> None:
    """Make this process what a fresh one with the same command would be."""
    os.setpgid(0, 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - these stay open
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name in ("stdin", "stdout", "stderr"):
        getattr(sys, name).buffer.raw.name = f"<{name}>"
    sys.stdout.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    sys.modules["numpy"].random.seed()
    sys.executable, arguments = request["python"], request["arguments"]
    arguments[:] = arguments[arguments[0] == "-u" :]
    first = {"-m": request["folder"], "-c": ""}.get(arguments[0], str(Path(arguments[0]).parent))
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if os.environ.get(GRAPHS):
        sys.meta_path.insert(0, _Graphs())


class _Graphs(importlib.abc.MetaPathFinder):
    """Gives the project's exporter a memory as soon as it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the exporter's own spec, once."""
        if name != "cse.export.graph":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_with_memory(module: types.ModuleType) -> None:
            run(module)
            remembered = runpy.run_path(str(Path(__file__).parents[1] / "export/memo.py"))["remembered"]
            module._export = remembered(module, Path(os.environ[GRAPHS]))

        spec.loader.exec_module = run_with_memory
        return spec


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code; an error that ends it goes on as it would."""
    kind, *rest = arguments
    sys.argv = rest if kind == "-m" else ["-c", *rest[1:]] if kind == "-c" else arguments
    try:
        if kind == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(rest[0], vars(sys.modules["__main__"]))
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, int | None):
            return (left.code or 0) & 0xFF
        sys.stderr.write(f"{left.code}\n")
        return 1
    return 0


def leave(code: int) -> None:
    """End as an interpreter does, but for taking thousands of modules apart: that takes longer than most commands."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 120
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        launch(*sys.argv[2:5], sys.argv[5:])
    request = serve(int(sys.argv[2]), Path(sys.argv[3]))
    prepare(request)
    leave(run(request["arguments"]))
