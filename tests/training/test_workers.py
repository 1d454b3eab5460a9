"""``train.workers``: Ray Train with real processes; a killed worker costs time and nothing else."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from tests.cli.workspace import contents, write_params, write_prepared
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WORKER = "RayTrainWorker"


@pytest.fixture
def folder(tiny_folders, tmp_path):
    write_prepared(tmp_path / "data/prepared", rows=400)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    return tmp_path


def start(folder, out, *settings, python=sys.executable):
    """Start a training; with ``forking_python`` for ``python``, whatever is neither killed nor loses a worker."""
    usual = "train.epochs=4", "train.eval_every=20", "train.save_seconds=1"
    options = [part for setting in (*usual, *settings) for part in ("-s", setting)]
    command = [python, "-m", "cse", "train", "--out", str(folder / out), *options]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def workers_of(process):
    """The worker processes below a command."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if WORKER in " ".join(child.cmdline()):
                    found.append(child)
    return found


def saved(folder):
    return list(folder.glob(".cse/resume/*/ray/*/checkpoint_manager_snapshot.json"))


def test_a_killed_command_and_a_killed_worker_cost_nothing_but_time(folder, forking_python):
    undisturbed = start(folder, "undisturbed", "train.workers=2", python=forking_python)
    _, errors = undisturbed.communicate(timeout=480)
    assert undisturbed.returncode == 0, errors
    assert "workers that share each batch: 2" in errors

    first = start(folder, "out", "train.workers=2")
    wait_for(lambda: saved(folder), 300)
    workers = workers_of(first)
    assert len(workers) == 2
    first.kill()
    first.communicate(timeout=60)
    wait_for(lambda: not any(worker.is_running() for worker in workers), 30)  # they do not outlive the command

    before = {path: path.stat().st_mtime_ns for path in saved(folder)}
    second = start(folder, "out", "train.workers=2")
    wait_for(lambda: any(path.stat().st_mtime_ns != before.get(path) for path in saved(folder)), 300)
    os.kill(workers_of(second)[1].pid, signal.SIGKILL)
    _, errors = second.communicate(timeout=480)
    assert second.returncode == 0, errors
    assert "resuming after step" in errors
    assert contents(folder / "out") == contents(folder / "undisturbed")
    found, expected = (json.loads((folder / f"{out}.json").read_text()) for out in ("out", "undisturbed"))
    assert found == expected
    assert not workers_of(second) and not list((folder / ".cse/resume").iterdir())
