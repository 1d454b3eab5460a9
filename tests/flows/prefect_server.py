"""A real Prefect server, workers and command line on loopback, each with a home of its own."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from filelock import FileLock

from tests.pipeline.workspace import Workspace
from tests.waiting import wait_for

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
DATABASES = ("prefect.db", "cse-runs.db")  # of a server, of a run without one
_migrated: list[Path] = []  # where the database of all homes lies, once a test run has said so


def share_database(folder: Path) -> None:
    """Name the folder in which all processes of a test run keep one new database."""
    _migrated[:] = [folder / "prefect-home"]


def new_home(home: Path) -> Path:
    """Return a home of Prefect with new databases; migrating one takes a server 13 s of processor time."""
    if home.exists():
        return home
    (shared,) = _migrated
    with FileLock(f"{shared}.lock"):
        if not (shared / DATABASES[0]).exists():
            subprocess.run(
                [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"], check=True,
                env=os.environ | {"PREFECT_HOME": str(shared)}, stdout=subprocess.DEVNULL,
            )  # fmt: skip
    home.mkdir(parents=True)
    for name in DATABASES:
        shutil.copyfile(shared / DATABASES[0], home / name)
    return home


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class PrefectServer:
    """A server with SQLite below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers = folder, list[subprocess.Popen[bytes]]()
        port = str(free_port())
        self.url = f"http://127.0.0.1:{port}/api"
        # what a client, a worker or a flow needs to find it
        self.environment = {
            "PREFECT_API_URL": self.url,
            "PREFECT_HOME": str(folder / "client-home"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_RUNNER_HEARTBEAT_FREQUENCY": "30",
            "DO_NOT_TRACK": "1",
            "NO_COLOR": "1",
            "COLUMNS": "300",
        }
        home = {"PREFECT_HOME": str(new_home(folder / "server-home")), "PREFECT_UI_API_URL": self.url}
        environment = os.environ | self.environment | home
        del environment["PREFECT_API_URL"]
        with (folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", port],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=5).is_success
        return False

    def worker(self, workspace: Workspace, pool: str, cwd: Path) -> subprocess.Popen[bytes]:
        """Start a worker in a folder that is not the project's."""
        cwd.mkdir(parents=True, exist_ok=True)
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [workspace.python, "-m", "prefect", "worker", "start", "--pool", pool, "--limit", "1"],
                cwd=cwd, env=workspace.environment | self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.workers.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "worker.log").read_text()

    def start_run(self, deployment: str, name: str, **parameters: Any) -> None:
        """Start a run of ``flow/name`` by the API: the command line imports for ten seconds."""
        found = httpx.get(f"{self.url}/deployments/name/{deployment}", timeout=30).raise_for_status().json()
        self.post(f"deployments/{found['id']}/create_flow_run", name=name, parameters=parameters)

    def run(self, deployment: str, name: str, **parameters: Any) -> dict[str, Any]:
        """Start a run of a deployment and return it once it is over."""
        self.start_run(deployment, name, **parameters)
        return self.finished(name)

    def post(self, path: str, **body: Any) -> Any:
        """Ask again, as Prefect's own client does, where the server is too busy (503)."""
        for _ in range(10):
            found = httpx.post(f"{self.url}/{path}", json=body, timeout=30)
            if found.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(1)
        found.raise_for_status()
        return found.json()

    def flow_run(self, name: str) -> dict[str, Any]:
        (found,) = self.post("flow_runs/filter", flow_runs={"name": {"any_": [name]}})
        return found

    def task_states(self, run: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return names and states of the tasks of a run, in order; waits until the server knows their ends."""

        def tasks() -> list[dict[str, Any]]:
            found = self.post("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
            return sorted((task for task in found if task["start_time"]), key=lambda task: task["start_time"])

        wait_for(lambda: tasks() and all(task["state_type"] in FINAL for task in tasks()), 30, lambda: str(tasks()))
        return [(task["name"], task["state_name"]) for task in tasks()]

    def messages(self, run: Mapping[str, Any]) -> list[str]:
        """Return the log lines of a run."""
        lines: list[str] = []
        while found := self.post("logs/filter", logs={"flow_run_id": {"any_": [run["id"]]}}, offset=len(lines)):
            lines += [line["message"] for line in found]
        return lines

    def finished(self, name: str, seconds: float = 240) -> dict[str, Any]:
        """Return a flow run once it is over."""
        wait_for(
            lambda: self.flow_run(name)["state_type"] in FINAL, seconds,
            lambda: f"{self.flow_run(name)}{self.log()}", every=1.0,
        )  # fmt: skip
        return self.flow_run(name)


@contextmanager
def prefect_server(folder: Path) -> Iterator[PrefectServer]:
    """Start a server; in the end stop it, its workers and whatever they left."""
    server = PrefectServer(folder)
    try:
        wait_for(server.answers, 180, (folder / "server.log").read_text)
        yield server
    finally:
        for process in (*server.workers, server.process):
            end_group(process)
        for process in processes_with("PREFECT_API_URL", server.url):
            with contextlib.suppress(psutil.Error):
                process.kill()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group that a process leads, by id: told to stop, a worker without its server takes long."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Return living processes that were started with a value in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
