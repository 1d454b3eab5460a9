"""The flow without a server: the pipeline of ``dvc.yaml`` and nothing else, quiet and private."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from flows.artifacts import read_shortfall
from tests.flows.runs import environment_of, run_script
from tests.pipeline.workspace import STAGES, Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Runs the flow three times against one temporary server, in a finished clone: with a stage more, with a stage that
# fails, and with one that fails once. A whole run: test_deployments.py.
SCRIPT = """
import json
from flows.server import quiet_server
from flows.train_cse import train_cse
from tests.flows.runs import run

with quiet_server():
    with open("dvc.yaml", "r+") as file:
        text = file.read().replace("\\nartifacts:", '''
  a-summary:
    cmd: cp data/bundle/bundle.json data/summary.json
    deps: [data/bundle]
    outs: [data/summary.json]

artifacts:''')
        file.seek(0)
        file.write(text)
    found = [run(train_cse, 4)]
    with open("dvc.yaml", "w") as file:
        file.write(text.replace("cp data/bundle/bundle.json", "echo the reason; false"))
    found.append(run(train_cse, 4))
    with open("once.sh", "w") as file:
        file.write("test -f ../tried && exec cp data/bundle/bundle.json data/summary.json\\n"
                   "touch ../tried; echo error: the hub is away; exit 75\\n")
    with open("dvc.yaml", "w") as file:
        file.write(text.replace("cp data/bundle/bundle.json data/summary.json", "sh once.sh"))
    found.append(run(train_cse, 4))
"""


@pytest.fixture(scope="module")
def flow_run(finished_tiny_clone, tmp_path_factory) -> tuple[Workspace, str, list[dict]]:
    workspace = finished_tiny_clone.copy(tmp_path_factory.mktemp("flow") / "clone")
    return workspace, *run_script(workspace, SCRIPT)


@pytest.fixture(scope="module")
def found(flow_run) -> list[dict]:
    return flow_run[2]


def test_a_new_stage_is_a_new_task(flow_run, found):
    """Its name comes first in the alphabet, its place in the graph last; the others are left as they were."""
    assert (found[0]["flow"], found[0]["state"]) == ("train-cse", "COMPLETED")
    short = read_shortfall(flow_run[0].folder)  # of a random backbone it may be either
    assert found[0]["name"] == ("Below backbone" if short else "Completed")
    assert short in found[0]["message"]
    assert found[0]["tasks"] == [*([stage, "Skipped"] for stage in STAGES), ["a-summary", "Executed"]]
    assert "Running stage 'train'" not in flow_run[1]
    assert flow_run[1].count("Stage 'train' didn't change, skipping") == 3


def test_a_failed_stage_ends_the_flow_with_its_last_lines(found):
    assert found[1]["state"] == "FAILED"
    assert found[1]["tasks"] == [*([stage, "Skipped"] for stage in STAGES), ["a-summary", "Failed"]]
    assert found[1]["message"].startswith("a-summary: stopped by an unexpected error")
    assert "the reason" in found[1]["message"]
    assert "`dvc repro a-summary`" in found[1]["message"], "what a person should do"


def test_what_may_pass_is_tried_again(flow_run, found):
    """The first attempt says that the hub is away (exit code 75), the second finds it."""
    assert found[2]["state"] == "COMPLETED"
    assert found[2]["tasks"][-1] == ["a-summary", "Executed"]
    assert flow_run[1].count("error: the hub is away") == 1
    assert "Retry 1/2 will start 10 second(s) from now" in flow_run[1]


# Every Python process of the run writes down whom it calls.
WATCH = """
import os, socket

def watched(name):
    inner = getattr(socket.socket, name)
    def call(self, address):
        with open(os.environ["CALLS"], "a") as file:
            file.write(f"{address}\\n")
        return inner(self, address)
    setattr(socket.socket, name, call)

watched("connect"), watched("connect_ex")
inner = socket.getaddrinfo

def getaddrinfo(host, *rest, **named):
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{(host,)}\\n")
    return inner(host, *rest, **named)

socket.getaddrinfo = getaddrinfo
"""


def test_quiet_and_private_on_a_slow_first_start(finished_tiny_clone, tmp_path):
    """A fresh home, little of the processor, and two runs that start at the same moment."""
    for name in ("one", "two"):
        finished_tiny_clone.copy(tmp_path / name / "clone")
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch/sitecustomize.py").write_text(WATCH)
    (tmp_path / "calls").write_text("")
    runs = []
    for name in ("one", "two"):
        workspace = Workspace(tmp_path / name / "clone")
        workspace.set({"export.tolerance": 2e-5})  # one stage to run
        workspace.commit()
        environment = environment_of(workspace) | {
            "PREFECT_HOME": str(tmp_path / "prefect"),
            "PYTHONPATH": str(tmp_path / "watch"),
            "CALLS": str(tmp_path / "calls"),
        }
        for variable in ("PREFECT_SERVER_ANALYTICS_ENABLED", "DO_NOT_TRACK", "DVC_NO_ANALYTICS"):
            environment.pop(variable, None)
        environment.pop("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS")
        log = (tmp_path / f"{name}.log").open("w")
        runs.append(
            subprocess.Popen(
                [sys.executable, "-m", "flows.train_cse"],
                cwd=workspace.folder,
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: os.nice(5),
            )
        )
    give_up = time.monotonic() + 300
    while not all("Beginning flow run" in (tmp_path / f"{name}.log").read_text() for name in ("one", "two")):
        assert time.monotonic() < give_up, (tmp_path / "one.log").read_text()
        time.sleep(0.5)
    codes = [run.wait(timeout=300) for run in runs]
    for name, code in zip(("one", "two"), codes, strict=True):
        log = (tmp_path / f"{name}.log").read_text()
        assert code == 0, log
        assert log.count("Finished in state Skipped") == len(STAGES) - 1, log
        assert log.count("Finished in state Executed") == 1
        for noise in ("database is locked", "Traceback", "| ERROR", "| WARNING", "| CRITICAL"):
            assert noise not in log, log
    calls = set((tmp_path / "calls").read_text().splitlines())
    assert calls, "the watch was on"
    outside = [call for call in calls if not any(here in call for here in ("127.0.0.1", "localhost", "'::1'", "/"))]
    assert outside == []


def test_sweep_and_gate(finished_tiny_clone, tmp_path):
    """The best of a grid goes on and into service; a worse model is registered and refused."""
    workspace = finished_tiny_clone.copy(tmp_path / "clone")
    workspace.environment |= environment_of(workspace)
    params = (workspace.folder / "params.yaml").read_text()
    output = workspace.run("cse", "flow", "train", "--sweep", "train.learning_rate=[0.02,1.0]", "--promote", "promote")
    found = re.findall(r"finished, learning_rate (\S+?)(?:, seed \d+)?: dev (\S+)", output)
    trials = {float(rate): float(score) for rate, score in found}
    assert set(trials) == {0.02, 1.0}
    best = max(trials, key=trials.get)
    assert re.search(
        rf"dev {trials[best]:.2f}; experiment \S+; promoted sentence-encoder@v1\.0\.0 to production", output
    )
    assert "Running stage 'train'" not in output, "the winner is not trained again"
    experiments = workspace.run("git", "for-each-ref", "--format=%(refname:lstrip=4)", "refs/exps").split()
    assert len(experiments) == 3 and sum(bool(re.search(r"-0[12]$", name)) for name in experiments) == 2
    assert (workspace.folder / "params.yaml").read_text() == params

    worse = min(trials, key=trials.get)
    assert trials[best] - trials[worse] > 0.5, "this test needs a worse model"
    output = workspace.run("cse", "flow", "train", "-s", f"train.learning_rate={worse}", "--promote", "promote")
    reason = r"sentence-encoder@v1\.1\.0 not promoted to production: dev Spearman \S+ is more than 0\.5 below"
    assert re.search(reason, output)
    assert "Refused" in output
    listed = json.loads(workspace.run("cse", "models", "list", "--json"))
    assert [(model["version"], model["stages"]) for model in listed] == [("v1.1.0", []), ("v1.0.0", ["production"])]
    assert listed[0]["scores"]["dev"] == pytest.approx(trials[worse], abs=0.01)

    refused = workspace.run("cse", "models", "promote", "v1.1.0", fails=True)
    assert "error: sentence-encoder@v1.1.0: not promoted to production; use `--force` to promote it anyway" in refused
    workspace.set({"export.tolerance": 1e-12})
    refused = workspace.run("cse", "models", "promote", "v1.0.0", fails=True)
    assert "no parity with torch" in refused
    workspace.set({"export.tolerance": 1e-5})
    assert "is in production" in workspace.run("cse", "models", "promote", "v1.1.0", "--force")
    assert "version: v1.1.0" in workspace.run("cse", "models", "show", "production")
    workspace.dvc("artifacts", "get", ".", "sentence-encoder", "--stage", "production", "--out", "bundle")
    assert (workspace.folder / "bundle/bundle.json").is_file()
