"""The deployments of ``prefect.yaml`` on a real server with real workers: normal use and failures."""

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML

from cse.search.table import open_table
from flows.train_cse import read_shortfall
from tests.flows.prefect_server import prefect_server, processes_with
from tests.pipeline.workspace import ROOT, STAGES, Workspace, tiny_clone
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with prefect_server(tmp_path_factory.mktemp("prefect")) as server:
        yield server


@pytest.fixture(scope="module")
def project(tmp_path_factory, server) -> Workspace:
    """A clone that is deployed on a fresh server, with both pools served from other folders."""
    workspace = tiny_clone(tmp_path_factory.mktemp("project") / "clone")
    workspace.environment |= server.environment
    output = workspace.run("prefect", "--no-prompt", "deploy", "--all")
    assert output.count("successfully created") == 7, output
    server.worker(workspace, "cse-local", tmp_path_factory.mktemp("elsewhere"))
    return workspace


@pytest.fixture(scope="module")
def first_run(project, server) -> dict[str, Any]:
    """A run of the whole pipeline; docs/pipeline.md starts one by the command line, which imports for ten seconds."""
    server.start_run("train-cse/local", "first")
    return server.finished("first", 600)


def test_a_deployment_runs_the_pipeline_and_no_schedule_by_itself(project, server, first_run, finished_tiny_clone):
    """That a run waits for another, and that nothing outlives a cancel, is shown below."""
    schedules = [schedule for found in server.post("deployments/filter") for schedule in found["schedules"]]
    assert len(schedules) == 2 and not any(schedule["active"] for schedule in schedules)
    pools = {pool["name"]: pool["concurrency_limit"] for pool in server.post("work_pools/filter")}
    assert (pools["cse-gpu"], pools["cse-local"]) == (1, None), "one run alone has the GPU"
    run, short = first_run, read_shortfall(project.folder)  # of a random backbone it may be either
    assert run["state_type"] == "COMPLETED", server.log()
    assert run["state_name"] == ("Below backbone" if short else "Completed")
    assert short in run["state"]["message"]
    assert server.task_states(run) == [(stage, "Executed") for stage in STAGES]
    assert "trained 20 steps" in "\n".join(server.messages(run)), "what a stage says stands in the run's log"
    by_flow = project.lock()
    assert project.dvc("repro").count("didn't change") == len(STAGES), "by hand DVC finds what the flow made"
    assert project.lock() == by_flow
    assert project.locked_stages() == finished_tiny_clone.locked_stages(), "`dvc repro` made the same bytes elsewhere"


def test_the_other_flows(project, server, first_run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a cat sleeps\nthe dog runs\n")
    models, scores = ["data/checkpoint", "data/bundle"], tmp_path / "scores.json"
    run = server.run("evaluate-cse/local", "evaluate", models=models, json_path=str(scores))
    assert run["state_type"] == "COMPLETED", server.log()
    one, other = (json.loads(scores.read_text())[model]["sts"]["evaluation"]["all"] for model in models)
    assert one == pytest.approx(other, abs=0.1)
    run = server.run("index-cse/local", "index-texts", texts=str(text), out=str(tmp_path / "table"), workers=1)
    assert "2 documents, exact search; 2 added" in run["state"]["message"]
    assert len(open_table(str(tmp_path / "table"))) == 2


def start_long(server, project: Workspace, name: str, **overrides: Any) -> list[Path]:
    """Start a run whose training takes long; return its saved states as soon as there is one."""
    known = {*project.folder.glob(".cse/resume/*/state.pt")}
    server.start_run("train-cse/local", name, overrides={"train.save_seconds": 0.0, **overrides})
    return wait_for(lambda: [*{*project.folder.glob(".cse/resume/*/state.pt")} - known], 120, server.log)


def stage_processes(project: Workspace) -> list[psutil.Process]:
    """Return what runs for this project: flows, DVC and stages, not workers."""
    found = processes_with("DVC_SITE_CACHE_DIR", project.environment["DVC_SITE_CACHE_DIR"])
    return [process for process in found if not {"worker", "deployment"} & {*words_of(process)}]


def nothing_runs(project: Workspace) -> None:
    wait_for(lambda: not stage_processes(project), 40, lambda: str(stage_processes(project)))
    assert project.leftovers() == []


def words_of(process: psutil.Process) -> list[str]:
    """Return the command of a process; none if it has just ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def test_a_cancelled_run_leaves_no_process_and_no_result(project, server, first_run):
    """Meanwhile another worker is told that a second run has to wait."""
    lock = project.lock()
    start_long(server, project, "cancelled", **{"train.epochs": 3000, "train.seed": 101})  # it would take minutes
    assert any("cse.stages.train" in words_of(process) for process in stage_processes(project))
    server.start_run("train-cse/local", "second")
    second = f"flow_runs/{server.flow_run('second')['id']}/set_state"
    assert server.post(second, state={"type": "PENDING"})["state"]["name"] == "AwaitingConcurrencySlot"
    server.post(second, state={"type": "CANCELLED"}, force=True)
    project.run("prefect", "flow-run", "cancel", server.flow_run("cancelled")["id"])
    assert server.finished("cancelled", 90)["state_type"] == "CANCELLED"
    nothing_runs(project)
    assert project.lock() == lock
    assert not list((project.folder / ".dvc/tmp/cse-runs").glob("*/data/checkpoint/checkpoint.json"))


@pytest.fixture
def automations(project, server, tmp_path):
    """Those of ``deploy/lost-workers.yaml``, sooner: a run without heartbeats is lost, a lost run starts again."""
    text = (ROOT / "deploy/lost-workers.yaml").read_text()
    assert "within: 90" in text
    (tmp_path / "sooner.yaml").write_text(text.replace("within: 90", "within: 45"))  # a heartbeat takes 30 s
    output = project.run("prefect", "automation", "create", "--from-file", str(tmp_path / "sooner.yaml"))
    yield
    for identity in re.findall(r"with id ([0-9a-f-]{36})", output):
        project.run("prefect", "automation", "delete", "--id", identity)


def test_a_lost_worker_and_the_undisturbed_score(project, server, first_run, automations, tmp_path_factory):
    """Everything on the worker's machine dies at once; when a worker is back, the same run goes on by itself."""
    overrides = {"train.epochs": 40, "train.seed": 103}
    saved = start_long(server, project, "killed", **overrides)
    victims = [*stage_processes(project), psutil.Process(server.workers[-1].pid)]
    for process in victims:
        process.kill()
    assert saved[0].is_file(), "killed in mid-training"
    psutil.wait_procs(victims, timeout=20)
    server.worker(project, "cse-local", tmp_path_factory.mktemp("elsewhere"))
    assert server.flow_run("killed")["state_type"] == "RUNNING", "nobody told the server"

    wait_for(lambda: server.flow_run("killed")["state_type"] == "COMPLETED", 300, server.log)
    run = server.flow_run("killed")
    assert run["run_count"] == 2
    assert re.search(r"resuming after step \d+ of \d+", "\n".join(server.messages(run)))

    whole = project.copy(tmp_path_factory.mktemp("whole") / "clone")
    shutil.rmtree(whole.folder / ".dvc/cache/runs")  # nothing to restore from: it trains anew
    whole.set(overrides | {"train.save_seconds": 0.0})
    output = whole.dvc("repro")
    assert "Running stage 'train'" in output
    refs = project.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()
    killed = project.run("git", "show", f"{next(ref for ref in refs if ref.endswith('/killed'))}:dvc.lock")
    assert YAML(typ="safe").load(killed)["stages"] == whole.locked_stages(), "the same bytes in every output"


def test_a_worker_clones_pulls_runs_and_pushes(project, server, first_run, tmp_path):
    """Its folder is empty but for somebody's dirty copy of the project, which must not matter."""
    project.dvc("repro")
    project.commit()
    project.dvc("push")
    elsewhere = project.copy(tmp_path / "worker")
    (elsewhere.folder / "cse/stages/train.py").write_text("raise SystemExit('a dirty tree on the worker')\n")
    shutil.rmtree(elsewhere.folder / ".dvc/cache")
    server.worker(project, "cse-gpu", elsewhere.folder)
    run = server.run("train-cse/gpu", "far-away", overrides={"train.learning_rate": 0.3})
    assert run["state_type"] == "COMPLETED", server.log()
    states = dict(server.task_states(run))
    assert states["pull"] == states["push"] == "Completed"
    assert states["prepare"] in ("Skipped", "Restored"), "pulled, not computed"
    assert states["train"] == "Executed"

    other = Workspace(tmp_path / "other")
    project.run("git", "clone", "--quiet", str(project.folder), str(other.folder))
    remote = (project.folder.parent / "cse-dvc-remote").resolve()
    other.dvc("remote", "modify", "--local", "local", "url", str(remote))
    other.dvc("exp", "pull", "origin", "far-away")
    other.dvc("exp", "apply", "far-away")
    assert "learning_rate: 0.3" in (other.folder / "params.yaml").read_text()
    other.dvc("pull")
    assert "didn't change" in other.dvc("repro")
    for out in ("data/prepared", "data/checkpoint", "data/bundle"):
        md5 = re.search(rf"path: {out}\n[^-]*?md5: ([0-9a-f]+\.dir)", other.lock())[1]
        assert (remote / "files/md5" / md5[:2] / md5[2:]).is_file()


def test_nothing_is_left(project, server):
    """At the end of all: no flow, no stage, no clone."""
    nothing_runs(project)
    assert not list((project.folder / ".dvc/tmp/cse-runs").glob("*"))
    assert subprocess.run(["git", "fsck", "--no-dangling"], cwd=project.folder, capture_output=True).returncode == 0
