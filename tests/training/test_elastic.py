"""A cluster of two machines (two Ray nodes on this one) and a bucket: one is lost, the training goes on with the other.

Each machine has a folder for temporary files of its own, so nothing but the bucket is shared.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cli.workspace import write_params, write_prepared
from tests.search.buckets import bucket  # noqa: F401 - a fixture
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
        self.environment, self.home = os.environ | QUIET | SOONER | {"HOME": str(home)}, home
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
        disk = self.home / ("first" if head else "second")
        disk.mkdir()
        done = subprocess.run(
            [RAY, "start", *where, *own, "--node-ip-address=127.0.0.1", "--num-cpus=1", "--disable-usage-stats"],
            env=self.environment | {"TMPDIR": str(disk)}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Every process with the home that is this cluster's alone."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HOME") == self.environment["HOME"] and name in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def stop(self) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def cluster(bucket, tmp_path):  # noqa: F811 - machines know the bucket from their environment
    made = Cluster(tmp_path)
    try:
        made.start(head=True)
        yield made
    finally:
        made.stop()


def test_a_lost_machine_leaves_a_smaller_group(cluster, bucket, tiny_folders, tmp_path):  # noqa: F811
    write_prepared(tmp_path / "data/prepared", rows=400)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    first = cluster.processes("raylet/raylet")
    cluster.start(head=False)
    second = [process for process in cluster.processes("raylet/raylet") if process not in first]
    assert len(second) == 1
    command, screen = [sys.executable, "-m", "cse", "train", "--out", "out"], tmp_path / "screen"
    for setting in ("train.workers=2", "train.epochs=6", "train.eval_every=50", "train.save_seconds=1"):
        command += ["-s", setting]
    with screen.open("w") as stream:
        training = subprocess.Popen(
            command, cwd=tmp_path, stderr=stream,
            env=cluster.environment | {"RAY_ADDRESS": cluster.address, "CSE_STORAGE": "s3://texts/runs"},
        )  # fmt: skip

    def stored() -> list[str]:
        return [one["Key"] for one in bucket.list_objects_v2(Bucket="texts").get("Contents", [])]

    wait_for(lambda: training.poll() is not None or any(name.endswith("/state.pt") for name in stored()), 400)
    wait_for(lambda: training.poll() is not None or any(name.endswith("snapshot.json") for name in stored()))
    assert training.poll() is None, screen.read_text()
    assert "workers that share each batch: 2" in screen.read_text()
    for disk in ("first", "second"):
        assert list((tmp_path / disk).glob("cse-train-*/rows/prepared/train.arrow")), "each has rows of its own"
    for process in (*second[0].children(recursive=True), *second):
        os.kill(process.pid, signal.SIGKILL)
    training.wait(timeout=600)
    errors = screen.read_text()
    assert training.returncode == 0, errors
    assert re.findall(r"workers that share each batch: (\d)", errors) == ["2", "1"]
    assert "resuming after step" in errors
    assert (tmp_path / "out/checkpoint.json").is_file()
    assert not stored() and not list((tmp_path / ".cse/resume").iterdir()), "nothing is left behind"
    assert not list((tmp_path / "first").glob("cse-*"))
