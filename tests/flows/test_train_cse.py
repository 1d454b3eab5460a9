"""The flow is the pipeline of ``dvc.yaml`` and nothing else: same stages, same order, same ``dvc.lock``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.pipeline.workspace import STAGES, Workspace, tiny_clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Runs the flow three times against one temporary server: as it is, with a stage more, with a stage that fails.
SCRIPT = """
import json, shutil, time
from pathlib import Path
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.testing.utilities import prefect_test_harness
from flows.train_cse import train_cse

def run():
    state = train_cse(return_state=True)
    chosen = FlowRunFilter(id={"any_": [state.state_details.flow_run_id]})
    with get_client(sync_client=True) as client:
        for _ in range(100):  # task runs reach the server a little later
            tasks = client.read_task_runs(flow_run_filter=chosen)
            if len(tasks) >= 4 - 3 * state.is_failed() and all(task.state.is_final() for task in tasks):
                break
            time.sleep(0.2)
        name = client.read_flow(client.read_flow_run(state.state_details.flow_run_id).flow_id).name
    tasks.sort(key=lambda task: task.start_time)
    return {"flow": name, "state": state.name, "message": state.message,
            "tasks": [[task.name, task.state.name] for task in tasks]}

with prefect_test_harness(server_startup_timeout=120):
    found = [run()]
    shutil.copyfile("dvc.lock", "../first.lock")
    with open("dvc.yaml", "r+") as file:
        text = file.read().replace("\\nplots:", '''
  a-summary:
    cmd: cp data/bundle/bundle.json data/summary.json
    deps: [data/bundle]
    outs: [data/summary.json]

plots:''')
        file.seek(0)
        file.write(text)
    found.append(run())
    with open("dvc.yaml", "w") as file:
        file.write(text.replace("cp data/bundle/bundle.json", "echo the reason; false"))
    found.append(run())
Path("../found.json").write_text(json.dumps(found))
"""


def environment_of(workspace: Workspace) -> dict[str, str]:
    return workspace.environment | {
        "PREFECT_HOME": str(workspace.folder.parent / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "DO_NOT_TRACK": "1",
    }


def processes_of(workspace: Workspace) -> list[psutil.Process]:
    """Return every process that was started with the Prefect home of this clone."""
    home, found = environment_of(workspace)["PREFECT_HOME"], []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT_HOME") == home and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def nothing_is_left(workspace: Workspace) -> None:
    _, left = psutil.wait_procs(processes_of(workspace), timeout=20)
    names = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert names == [], "the flow left processes behind"


@pytest.fixture(scope="module")
def flow_run(tmp_path_factory) -> tuple[Workspace, str]:
    workspace = tiny_clone(tmp_path_factory.mktemp("flow") / "clone")
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=workspace.folder, env=environment_of(workspace),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
    finally:
        nothing_is_left(workspace)
    return workspace, done.stdout


@pytest.fixture(scope="module")
def found(flow_run) -> list[dict]:
    return json.loads((flow_run[0].folder.parent / "found.json").read_text())


def test_one_task_per_stage_in_graph_order(flow_run, found):
    assert found[0]["flow"] == "train-cse"
    assert found[0]["state"] == "Completed"
    assert found[0]["tasks"] == [[stage, "Completed"] for stage in STAGES]
    log = flow_run[1]
    assert "trained 20 steps" in log, "what a stage says stands in the run's log"
    assert log.index("Running stage 'prepare'") < log.index("Running stage 'export'")


def test_a_new_stage_is_a_new_task(flow_run, found):
    """Its name comes first in the alphabet, its place in the graph last; the others are left as they were."""
    assert found[1]["tasks"] == [[stage, "Completed"] for stage in [*STAGES, "a-summary"]]
    assert flow_run[1].count("Running stage 'train'") == 1
    assert flow_run[1].count("Stage 'train' didn't change, skipping") == 2


def test_a_failed_stage_ends_the_flow_with_its_last_lines(found):
    assert found[2]["state"] == "Failed"
    assert found[2]["tasks"] == [*([stage, "Completed"] for stage in STAGES), ["a-summary", "Failed"]]
    assert "stage 'a-summary' failed" in found[2]["message"]
    assert "the reason" in found[2]["message"]


def test_the_lock_is_that_of_plain_dvc(flow_run, tmp_path):
    plain = tiny_clone(tmp_path / "clone")
    plain.dvc("repro")
    assert (flow_run[0].folder.parent / "first.lock").read_text(encoding="utf-8") == plain.lock()


def test_a_stopped_flow_stops_its_stage(tmp_path):
    """A signal to the flow alone: the stage saves its state, and nothing runs on."""
    workspace = tiny_clone(tmp_path / "clone", train__epochs=2000, train__save_every=5)
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.train_cse"],
            cwd=workspace.folder, env=environment_of(workspace), stdout=stream, stderr=stream,
        )  # fmt: skip
    try:
        give_up = time.monotonic() + 300
        while not list(workspace.folder.glob(".cse/resume/*/state.pt")) and time.monotonic() < give_up:
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=90) != 0
    finally:
        nothing_is_left(workspace)
    assert "state saved" in log.read_text()
    assert not Path(workspace.folder / "data/checkpoint").exists()
