"""`cse embed` with Ray, as processes: the same bytes as without, through kills of everything and of one actor."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cse.scale.corpus.embed import embed_corpus
from tests.runtime.conftest import bundle  # noqa: F401 - a fixture
from tests.scale.corpora import choices, outputs, read_vectors, sentences, shards, write_jsonl, write_parquet, write_txt

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


def test_a_killed_actor_is_replaced(start, corpus, tmp_path):
    out = tmp_path / "vectors"
    process = start(corpus, out)
    wait_for_shards(process, out, 10)
    actor = next(member for member in family(process) if "PieceActor" in name_of(member))
    actor.kill()
    assert len(shards(out)) < SHARDS, "killed in the middle"
    assert f"in {SHARDS} shards\n" in finished(process)
    finished(start(corpus, tmp_path / "plain", workers=0))
    assert outputs(out) == outputs(tmp_path / "plain")


def name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def test_sigterm_ends_in_one_line_and_leaves_no_process(start, corpus, tmp_path):
    out = tmp_path / "vectors"
    process = start(corpus, out)
    wait_for_shards(process, out, 10)
    members = family(process)
    folders = ray_folders(process.pid)
    assert len(folders) == 2, "a folder and its lock"
    process.terminate()
    (line,) = finished(process, 128 + signal.SIGTERM).splitlines()
    assert line.startswith("SIGTERM after ")
    assert line.endswith(" of 20,000 rows: state saved; run the same command again to resume")
    assert 10 <= len(shards(out)) < SHARDS
    assert gone(members)
    assert ray_folders(process.pid) == []


def ray_folders(pid: int) -> list[Path]:
    return list(Path("/tmp").glob(f"cse-ray-{pid}-*"))


def test_what_an_actor_refuses_is_one_line(start, tmp_path, bundle):  # noqa: F811
    texts = sentences(3000)
    texts[2500] = "a bad mat"
    process = start(write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts]), tmp_path / "vectors")
    (line,) = finished(process, 2).splitlines()
    assert line.startswith("error: sentences[0]: its embedding is not finite (text starts 'a bad mat')")


def test_a_cluster_that_does_not_answer_is_one_line(start, tmp_path, corpus, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    process = subprocess.run(
        [sys.executable, "-m", "cse.cli", "embed", corpus, "--out", tmp_path / "x", "--model", tmp_path / "bundle"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: RAY_ADDRESS=127.0.0.1:1: no Ray cluster answers")


def test_rows_of_parquet_reach_workers_as_they_are(bundle, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    texts = sentences(1500)
    corpus = str(write_parquet(tmp_path / "a.parquet", {"text": texts, "n": [f"id {n}" for n in range(1500)]}, 333))
    for name, workers in (("with", 1), ("without", 0)):
        given = choices(id_column="n", shard_rows=100)
        done = embed_corpus(corpus, str(tmp_path / name), str(bundle), given, workers=workers)
        assert (done.rows, done.found, done.shards) == (1500, 0, 15)
    assert outputs(tmp_path / "with") == outputs(tmp_path / "without")
    assert read_vectors(tmp_path / "with")[2] == texts
