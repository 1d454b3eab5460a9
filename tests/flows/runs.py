"""A flow run several times on one temporary server, in a process of its own inside a clone."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from tests.flows.prefect_server import new_home, processes_with
from tests.pipeline.workspace import ROOT, Workspace


def run(flow: Any, tasks_at_least: int) -> dict[str, Any]:
    """Run a flow on the server in use; return how it and its tasks ended. Called by the script of ``run_script``."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    state = flow(return_state=True)
    chosen = FlowRunFilter(id={"any_": [state.state_details.flow_run_id]})
    with get_client(sync_client=True) as client:
        for _ in range(100):  # task runs reach the server a little later
            tasks = client.read_task_runs(flow_run_filter=chosen)
            if len(tasks) >= tasks_at_least and all(task.state.is_final() for task in tasks):
                break
            time.sleep(0.2)
    tasks.sort(key=lambda task: task.start_time)
    return {
        "flow": flow.name, "state": state.type.value, "message": state.message,
        "tasks": [[task.name, task.state.name] for task in tasks],
    }  # fmt: skip


def environment_of(workspace: Workspace) -> dict[str, str]:
    return workspace.environment | {
        "PREFECT_HOME": str(new_home(workspace.folder.parent / "prefect")),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "DO_NOT_TRACK": "1",
    }


def run_script(workspace: Workspace, script: str) -> tuple[str, list[dict[str, Any]]]:
    """Run a script that leaves what it ``found``; return its output and that, once none of its processes is left."""
    place = workspace.folder.parent / "found.json"
    try:
        done = subprocess.run(
            [workspace.python, "-c", f"{script}\nopen({str(place)!r}, 'w').write(json.dumps(found))"],
            cwd=workspace.folder,
            env=environment_of(workspace) | {"PYTHONPATH": str(ROOT)},  # for tests; the clone's own code comes first
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
    finally:
        home = environment_of(workspace)["PREFECT_HOME"]
        _, left = psutil.wait_procs(processes_with("PREFECT_HOME", home), timeout=20)
        names = [" ".join(process.cmdline()) for process in left]
        for process in left:
            process.kill()
        assert names == [], "the flow left processes behind"
    return done.stdout, json.loads(Path(place).read_text())
