"""``train.workers``: Ray Train with real processes; a killed worker costs time and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from cse.data.store import PreparedData
from cse.data.tasks.store import open_dev
from tests.cli.workspace import contents, write_params, write_prepared
from tests.tiny import write_dev
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

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
    command = [python, "-m", "cse.cli", "train", "--out", str(folder / out), *options]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def workers_of(process):
    """The worker processes below a command."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in below if WORKER in " ".join(_line(child))]


def _line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def saved(folder):
    return list(folder.glob(".cse/resume/*/ray/*/checkpoint_manager_snapshot.json"))


def metrics(folder, out):
    return json.loads((folder / f"{out}.json").read_text())


def test_a_killed_worker_costs_nothing_but_time(folder, forking_python):
    undisturbed = start(folder, "undisturbed", "train.workers=2", python=forking_python)
    _, errors = undisturbed.communicate(timeout=480)
    assert undisturbed.returncode == 0, errors
    assert "workers that share each batch: 2" in errors

    disturbed = start(folder, "disturbed", "train.workers=2")
    wait_for(lambda: saved(folder), 300)
    victims = workers_of(disturbed)
    assert len(victims) == 2
    os.kill(victims[1].pid, signal.SIGKILL)
    _, errors = disturbed.communicate(timeout=480)
    assert disturbed.returncode == 0, errors
    assert errors.count("workers that share each batch") == 2  # the group was started twice
    assert "resuming after step" in errors
    assert contents(folder / "disturbed") == contents(folder / "undisturbed")
    assert metrics(folder, "disturbed") == metrics(folder, "undisturbed")
    assert contents(folder / "disturbed.plots") == contents(folder / "undisturbed.plots")  # every loss on the way
    assert not workers_of(disturbed) and not list((folder / ".cse/resume").iterdir())


def test_a_killed_command_goes_on(folder, forking_python):
    first = start(folder, "out", "train.workers=2")
    wait_for(lambda: saved(folder), 300)
    workers = workers_of(first)
    assert len(workers) == 2
    first.kill()
    first.communicate(timeout=60)
    wait_for(lambda: not any(worker.is_running() for worker in workers), 30)  # they do not outlive the command
    second = start(folder, "out", "train.workers=2", python=forking_python)
    _, errors = second.communicate(timeout=480)
    assert second.returncode == 0, errors
    assert "resuming after step" in errors
    assert metrics(folder, "out")["steps"] == 200


def test_what_cannot_work_is_said_in_one_line(folder, forking_python):
    many = start(folder, "out", "train.workers=1000", python=forking_python)
    _, errors = many.communicate(timeout=240)
    assert many.returncode == 2
    assert "train.workers: 1000 workers, but there are" in errors.splitlines()[-1]

    # dev pairs are scored by the first worker alone, while the other waits for the score
    dev = open_dev(PreparedData(folder / "data/prepared"))
    write_dev(folder / "data/prepared", dataclasses.replace(dev, score=np.ones(len(dev))))
    constant = start(folder, "out", "train.workers=2", python=forking_python)
    _, errors = constant.communicate(timeout=480)
    assert constant.returncode == 2
    assert errors.splitlines()[-1].startswith("error: dev: all 30 gold scores are equal (1)"), errors
    assert errors.count("workers that share each batch: 2") == 1, "it was tried again"
    assert not (folder / "out").exists()
