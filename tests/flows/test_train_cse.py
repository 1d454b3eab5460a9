"""The flow without a server: the pipeline of ``dvc.yaml`` and nothing else, quiet and private."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.flows.prefect_server import new_home, processes_with
from tests.flows.repositories import write
from tests.pipeline.workspace import STAGES, Workspace
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Two stages behind those of the project, whose names come first in the alphabet: one fails once, one for good.
MORE = """
  a-summary:
    cmd: test -f ../tried && exec cp data/bundle/bundle.json data/summary.json;
      touch ../tried; echo 'error:' the hub is away; exit 75
    deps: [data/bundle]
    outs: [data/summary.json]
  a-copy:
    cmd: echo the reason; false
    deps: [data/summary.json]
    outs: [data/copy.json]
"""


def environment_of(workspace: Workspace) -> dict[str, str]:
    return workspace.environment | {
        "PREFECT_HOME": str(new_home(workspace.folder.parent / "prefect")),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "DO_NOT_TRACK": "1",
    }


def test_each_stage_is_a_task_which_is_tried_again_or_ends_the_flow(finished_tiny_clone, tmp_path):
    """A whole run: test_deployments.py."""
    workspace = finished_tiny_clone.copy(tmp_path / "clone")
    workspace.environment |= environment_of(workspace)
    file = workspace.folder / "dvc.yaml"
    file.write_text(file.read_text().replace("\nartifacts:", f"{MORE}\nartifacts:"))
    log = workspace.run("cse", "flow", "train", fails=True)
    wait_for(lambda: not processes_with("PREFECT_HOME", workspace.environment["PREFECT_HOME"]), 20)
    ended = re.findall(r"Task run '([\w-]+)' - Finished in state (\w+)", log)
    assert ended == [*((stage, "Skipped") for stage in STAGES), ("a-summary", "Executed"), ("a-copy", "Failed")], log
    assert "Stage 'train' didn't change, skipping" in log and "Running stage 'train'" not in log
    assert log.count("error: the hub is away") == 1, "exit code 75; the second attempt finds it"
    assert "Retry 1/2 will start 10 second(s) from now" in log
    (last,) = (line for line in log.splitlines() if line.startswith("error: a-copy: stopped by an unexpected error"))
    assert "the reason" in last and "`dvc repro a-copy`" in last, "what a person should do"


# Every Python process of the run writes down whom it calls.
WATCH = """
import os, sys

def called(event, given):
    if event in ("socket.connect", "socket.getaddrinfo"):
        with open(os.environ["CALLS"], "a") as file:
            file.write(f"{given[1:] if event == 'socket.connect' else given[:1]}\\n")

sys.addaudithook(called)
"""


def test_quiet_and_private_on_a_slow_first_start(finished_tiny_clone, tmp_path):
    """A fresh home, little of the processor, and two runs that start at the same moment."""
    write(tmp_path / "watch/sitecustomize.py", WATCH)
    write(tmp_path / "calls", "")
    places = {"PREFECT_HOME": "prefect", "PYTHONPATH": "watch", "CALLS": "calls"}
    watched = {name: str(tmp_path / place) for name, place in places.items()}
    clones = [finished_tiny_clone.copy(tmp_path / name / "clone") for name in ("one", "two")]
    for workspace in clones:
        workspace.set({"export.tolerance": 2e-5})  # one stage to run
        workspace.commit()
    runs, logs = [], [tmp_path / "one.log", tmp_path / "two.log"]
    for workspace, log in zip(clones, logs, strict=True):
        environment = workspace.environment | watched
        del environment["DVC_NO_ANALYTICS"]
        with log.open("w") as stream:
            runs.append(subprocess.Popen(
                [sys.executable, "-m", "flows.train_cse"], cwd=workspace.folder, env=environment,
                stdout=stream, stderr=stream, preexec_fn=lambda: os.nice(5),
            ))  # fmt: skip
    wait_for(lambda: all("Beginning flow run" in log.read_text() for log in logs), 300, logs[0].read_text, every=0.5)
    for run, log in zip(runs, logs, strict=True):
        code, text = run.wait(timeout=300), log.read_text()
        assert code == 0, text
        assert text.count("Finished in state Skipped") == len(STAGES) - 1, text
        assert text.count("Finished in state Executed") == 1
        for noise in ("database is locked", "Traceback", "| ERROR", "| WARNING", "| CRITICAL"):
            assert noise not in text, text
    calls = set((tmp_path / "calls").read_text().splitlines())
    assert calls, "the watch was on"
    assert [call for call in calls if not any(at in call for at in ("127.0.0.1", "localhost", "'::1'", "/"))] == []


GOOD, WORSE = 1.0, 0.02  # learning rates


def test_the_gate(finished_tiny_clone, tmp_path):
    """A model goes into service; a worse one is registered and refused."""
    workspace = finished_tiny_clone.copy(tmp_path / "clone")
    workspace.environment |= environment_of(workspace)
    params = (workspace.folder / "params.yaml").read_text()
    found = []
    for rate in GOOD, WORSE:
        output = workspace.run("cse", "flow", "train", "-s", f"train.learning_rate={rate}", "--promote", "promote")
        found.append(float(re.search(r"dev (\S+); (?:below [^;]+; )?experiment ", output)[1]))
        if rate == GOOD:
            assert re.search(r"experiment \S+; promoted sentence-encoder@v1\.0\.0 to production", output)
    assert (workspace.folder / "params.yaml").read_text() == params
    assert found[0] - found[1] > 0.5, "this test needs a worse model"
    reason = r"sentence-encoder@v1\.1\.0 not promoted to production: dev Spearman \S+ is more than 0\.5 below"
    assert re.search(reason, output)
    assert "Refused" in output
    listed = json.loads(workspace.run("cse", "models", "list", "--json"))
    assert [(model["version"], model["stages"]) for model in listed] == [("v1.1.0", []), ("v1.0.0", ["production"])]
    assert listed[0]["scores"]["dev"] == pytest.approx(found[1], abs=0.01)

    refused = workspace.run("cse", "models", "promote", "v1.1.0", fails=True)
    assert "error: sentence-encoder@v1.1.0: not promoted to production; use `--force` to promote it anyway" in refused
    assert "is in production" in workspace.run("cse", "models", "promote", "v1.1.0", "--force")
    assert "version: v1.1.0" in workspace.run("cse", "models", "show", "production")
