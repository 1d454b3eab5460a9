"""A cluster of two machines (two Ray nodes on this one) and a bucket: one is lost, the training goes on with the other.

Each machine has a folder for temporary files of its own, so nothing but the bucket is shared.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.workspace import write_params, write_prepared
from tests.search.buckets import bucket  # noqa: F401 - a fixture
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RAY = str(Path(sys.executable).parent / "ray")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"}
# a machine that is silent is lost after 3 seconds instead of 15; a group that waits for it is given up after 10, not 60
SOONER = {"RAY_health_check_period_ms": "600", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10"}


@pytest.fixture
def environment(bucket, tmp_path):  # noqa: F811 - machines know the bucket from it
    """Of all processes on machines and of the command, with a token that is theirs alone."""
    token = tmp_path / ".ray/auth_token"  # as `ray get-auth-token --generate` would
    token.parent.mkdir()
    token.write_text(secrets.token_hex(32))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return os.environ | QUIET | SOONER | {"HOME": str(tmp_path), "RAY_ADDRESS": address}


@pytest.fixture
def machine(environment, tmp_path):
    """Starts a machine with one processor: the kernel kills its processes with the one that is returned."""
    started, short = [], Path(tempfile.mkdtemp(prefix="cse-el-", dir="/tmp"))  # sockets lie in it

    def start(name, *options):
        disk, screen = tmp_path / name, tmp_path / f"{name}.txt"
        disk.mkdir()
        usual = "--block", "--node-ip-address=127.0.0.1", "--num-cpus=1", "--disable-usage-stats"
        with screen.open("w") as stream:
            started.append(subprocess.Popen(
                [RAY, "start", *usual, *options], env=environment | {"TMPDIR": str(disk)}, stdout=stream, stderr=stream,
                start_new_session=True,
            ))  # fmt: skip
        wait_for(lambda: "Ray runtime started" in screen.read_text(), 120, screen.read_text)
        return started[-1]

    try:
        port = environment["RAY_ADDRESS"].partition(":")[2]
        start("first", "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={short}")
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
        shutil.rmtree(short, ignore_errors=True)


def test_a_lost_machine_leaves_a_smaller_group(machine, environment, bucket, tiny_folders, tmp_path):  # noqa: F811
    write_prepared(tmp_path / "data/prepared", rows=400)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    second = machine("second", f"--address={environment['RAY_ADDRESS']}")
    command, screen = [sys.executable, "-m", "cse", "train", "--out", "out"], tmp_path / "screen"
    for setting in ("train.workers=2", "train.epochs=6", "train.eval_every=50", "train.save_seconds=1"):
        command += ["-s", setting]
    with screen.open("w") as stream:
        training = subprocess.Popen(
            command, cwd=tmp_path, stderr=stream, env=environment | {"CSE_STORAGE": "s3://texts/runs"}
        )

    def stored() -> list[str]:
        return [one["Key"] for one in bucket.list_objects_v2(Bucket="texts").get("Contents", [])]

    wait_for(lambda: training.poll() is not None or any(name.endswith("/state.pt") for name in stored()), 400)
    wait_for(lambda: training.poll() is not None or any(name.endswith("snapshot.json") for name in stored()))
    assert training.poll() is None, screen.read_text()
    assert "workers that share each batch: 2" in screen.read_text()
    for disk in ("first", "second"):
        assert list((tmp_path / disk).glob("cse-train-*/rows/prepared/train.arrow")), "each has rows of its own"
    second.kill()
    training.wait(timeout=600)
    errors = screen.read_text()
    assert training.returncode == 0, errors
    assert re.findall(r"workers that share each batch: (\d)", errors) == ["2", "1"]
    assert "resuming after step" in errors
    assert (tmp_path / "out/checkpoint.json").is_file()
    assert not stored() and not list((tmp_path / ".cse/resume").iterdir()), "nothing is left behind"
    assert not list((tmp_path / "first").glob("cse-*"))
