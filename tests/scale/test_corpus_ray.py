"""`cse embed` with Ray, as processes: the same bytes as without, through kills of everything and of one actor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.runtime.conftest import bundle  # noqa: F401 - a fixture
from tests.scale.corpora import outputs, sentences, shards, write_txt

pytestmark = pytest.mark.slow

ROWS, SHARD_ROWS = 20_000, 100
SHARDS = ROWS // SHARD_ROWS
WORKERS = min(2, len(os.sched_getaffinity(0)))


@pytest.fixture
def corpus(tmp_path):
    return write_txt(tmp_path / "corpus.txt", sentences(ROWS))


@pytest.fixture
def start(bundle):  # noqa: F811
    """Start `cse embed` in a process group of its own."""

    def embed(corpus, out, *options, workers=WORKERS, rows=SHARD_ROWS):
        command = [
            sys.executable, "-m", "cse.cli", "embed", corpus, "--out", out, "--model", bundle, "--workers", workers,
            "--shard-rows", rows, "--provider", "cpu", *options,
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return subprocess.Popen(
            [str(word) for word in command], stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
        )

    return embed


def finished(process: subprocess.Popen, code: int = 0) -> str:
    """Wait for a run, and return what it said."""
    _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    return said


def wait_for_shards(process: subprocess.Popen, out: Path, count: int) -> None:
    until = time.monotonic() + 90
    while len(shards(out)) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, f"{len(shards(out))} shards after 90 s"
        time.sleep(0.005)


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def gone(members: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(members, timeout=30)
    return not [member for member in alive if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]


def kill_all(process: subprocess.Popen, out: Path, at: int) -> int:
    """SIGKILL the process group once there are ``at`` shards; return how many there are when all are gone."""
    wait_for_shards(process, out, at)
    members = family(process)
    assert len(members) > WORKERS, "Ray runs"
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    process.stderr.close()
    assert gone(members), "Ray ends with the process that started it"
    return len(shards(out))


def test_killed_twice_then_equal_to_an_undisturbed_run_and_to_one_without_ray(start, corpus, tmp_path):
    said = finished(start(corpus, tmp_path / "straight", "--keep-text"))
    assert f"20,000 vectors of 8 dimensions in {SHARDS} shards\n" in said
    finished(start(corpus, tmp_path / "plain", "--keep-text", workers=0))
    out = tmp_path / "killed"
    first = kill_all(start(corpus, out, "--keep-text"), out, 20)
    assert 20 <= first < SHARDS, "killed in the middle"
    second = kill_all(start(corpus, out, "--keep-text"), out, first + 20)
    assert first + 20 <= second < SHARDS, "killed in the middle again"
    said = finished(start(corpus, out, "--keep-text"))
    assert f"in {SHARDS} shards, {second * SHARD_ROWS:,} of them from earlier runs\n" in said
    assert len(outputs(out)) == SHARDS + 2
    assert outputs(out) == outputs(tmp_path / "straight") == outputs(tmp_path / "plain")
