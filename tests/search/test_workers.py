"""`cse index` as processes, with Ray and without: killed for real, it goes on, and ends in the same rows."""

import os
import signal
import subprocess
import sys

import lancedb
import numpy as np
import psutil
import pytest

from cse.errors import CseError
from cse.search.workers import _gpus_of_a_worker
from tests.rows import write_lines
from tests.search.corpora import rows_of, sentences
from tests.test_machines import ray_of
from tests.waiting import wait_for

ROWS = 60_000


def start(corpus, out, model, workers):
    """Start `cse index` in a process group of its own, with small commits."""
    small = "from cse.search import index; index.PIECE = index._COMMIT_ROWS = 200; from cse.cli import main; main()"
    command = [sys.executable, "-c", small, "index", corpus, "--out", out, "--model", model, "--workers", workers]
    return subprocess.Popen(
        [*map(str, command), "--device", "cpu", "--kind", "exact"], stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
    )  # fmt: skip


def rows_in(out):
    try:
        return lancedb.connect(str(out)).open_table("index").count_rows()
    except (ValueError, RuntimeError):
        return 0


def wait_for_rows(process, out, count):
    def there():
        assert process.poll() is None, process.communicate()[1]
        return rows_in(out) >= count

    wait_for(there, 120, every=0.01)


def kill_all(process, out, at):
    """SIGKILL the process group once there are so many rows; return how many there are when all are gone."""
    wait_for_rows(process, out, at)
    members = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    process.stderr.close()
    _, alive = psutil.wait_procs(members, timeout=30)
    assert not [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    return rows_in(out)


@pytest.mark.slow
def test_killed_twice_it_goes_on_and_workers_make_the_same(bundle, tmp_path):
    corpus = write_lines(tmp_path / "corpus.txt", [f"{n} {text}" for n, text in enumerate(sentences(ROWS))])
    straight = start(corpus, tmp_path / "straight", bundle, 0)
    assert straight.communicate(timeout=300) and straight.returncode == 0
    out = tmp_path / "killed"
    first = kill_all(start(corpus, out, bundle, 0), out, 1000)
    assert 1000 <= first < ROWS, "killed in the middle"
    second = kill_all(start(corpus, out, bundle, 2), out, first + 1000)
    assert first + 1000 <= second < ROWS, "killed in the middle again, with Ray"
    process = start(corpus, out, bundle, 2)
    wait_for_rows(process, out, second + 1000)
    below = psutil.Process(process.pid).children(recursive=True)
    workers = [one for one in below if "_Worker" in " ".join(one.cmdline())]
    workers[0].kill()  # its pieces are made again
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert f"{ROWS - second:,} new, 0 changed, 0 gone, {second:,} as they were\n" in said, "no row is embedded twice"
    first, second = (rows_of(one) for one in (out, tmp_path / "straight"))
    assert first.drop_columns(["embedding"]).equals(second.drop_columns(["embedding"]))
    vectors = [table["embedding"].combine_chunks().flatten().to_numpy() for table in (first, second)]
    np.testing.assert_allclose(*vectors, atol=1e-6)


def test_workers_that_find_no_place():
    assert _gpus_of_a_worker(ray_of(2, 2, 2), 4, "cpu") == 0
    assert _gpus_of_a_worker(ray_of((4, 1), (2, 1)), 4, "cuda") == 0.5
    line = r"--workers 7: each takes 1 CPU of one machine, and Ray has 3 machines of 2 CPUs; use 6 or fewer$"
    with pytest.raises(CseError, match=line):
        _gpus_of_a_worker(ray_of(2, 2, 2), 7, "cpu")
    with pytest.raises(CseError, match=r"--workers 4: each takes 1 CPU and 0.25 GPUs of one machine.*use 1 or fewer$"):
        _gpus_of_a_worker(ray_of((1, 1), 8), 4, "cuda")
    with pytest.raises(CseError, match="no GPU"):
        _gpus_of_a_worker(ray_of(8), 2, "cuda")
