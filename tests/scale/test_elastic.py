"""A cluster of two machines (two Ray nodes on this one): one is lost, the training goes on with what is left."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.cli.workspace import write_params, write_prepared
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RAY = str(Path(sys.executable).parent / "ray")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"}
# a machine that is silent is lost after 3 seconds instead of 15; a group that waits for it is given up after 10, not 60
SOONER = {"RAY_health_check_period_ms": "600", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10"}


class Cluster:
    """Nodes with one processor each; their processes, and those that join, are told by a home that is theirs alone."""

    def __init__(self, home: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cse-el-", dir="/tmp"))  # short: sockets lie in it
        self.environment = os.environ | QUIET | SOONER | {"HOME": str(home)}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        token = home / ".ray/auth_token"  # as `ray get-auth-token --generate` would
        token.parent.mkdir()
        token.write_text(secrets.token_hex(32))

    def start(self, *, head: bool) -> None:
        port = self.address.partition(":")[2]
        where = ["--head", f"--port={port}", "--include-dashboard=false"] if head else [f"--address={self.address}"]
        own = [f"--temp-dir={self.folder}"] if head else []
        done = subprocess.run(
            [RAY, "start", *where, *own, "--node-ip-address=127.0.0.1", "--num-cpus=1", "--disable-usage-stats"],
            env=self.environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Every process with the home that is this cluster's alone."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == self.environment["HOME"] and name in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def stop(self) -> None:
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    try:
        made.start(head=True)
        yield made
    finally:
        made.stop()


def test_a_lost_machine_leaves_a_smaller_group(cluster, tiny_folders, tmp_path):
    write_prepared(tmp_path / "data/prepared", rows=400)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    first = cluster.processes("raylet/raylet")
    cluster.start(head=False)
    second = [process for process in cluster.processes("raylet/raylet") if process not in first]
    assert len(second) == 1
    command = [sys.executable, "-m", "cse.cli", "train", "--out", "out", "-s", "train.workers=2"]
    training = subprocess.Popen(
        [*command, "-s", "train.epochs=6", "-s", "train.eval_every=50"],
        cwd=tmp_path, env=cluster.environment | {"RAY_ADDRESS": cluster.address}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def progress() -> str:
        return "".join(log.read_text() for log in tmp_path.glob(".cse/resume/*/progress.log"))

    wait_for(lambda: list(tmp_path.glob(".cse/resume/*/state.pt")))
    assert "workers that share each batch: 2" in progress()
    lost = [*second[0].children(recursive=True), *second]
    for process in lost:
        os.kill(process.pid, signal.SIGKILL)
    _, errors = training.communicate(timeout=600)
    assert training.returncode == 0, errors
    assert re.findall(r"workers that share each batch: (\d)", errors) == ["2", "1"]
    assert "resuming after step" in errors
    assert (tmp_path / "out/checkpoint.json").is_file()
