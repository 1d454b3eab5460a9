"""A worker that outgrows its share of the memory leaves a note and goes; the next attempt holds half as much."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cse.tune.job import METRIC, WORST
from cse.tune.memory import GROWN
from cse.tune.trial import run_trial
from tests.tune.test_trial import CONFIG

GREEDY = """
import sys, time
from pathlib import Path
import numpy as np
import cse.tune.memory as memory
memory.SHARE = float(sys.argv[2])
with memory.kept_to_share(Path(sys.argv[1]), 1, 96, Path(sys.argv[1] + "-attempt")):
    held = np.ones(300 * 2**20, np.uint8)
    time.sleep(1)
print("in its share")
"""


def greedy(note, share):
    command = [sys.executable, "-c", GREEDY, str(note), str(share)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_process_beyond_its_share_ends_with_a_note(tmp_path):
    (tmp_path / "note-attempt").touch()
    done = greedy(tmp_path / "note", share=1e-4)
    assert done.returncode == 137 and not done.stdout
    assert (tmp_path / "note").read_text() == "96"
    assert not (tmp_path / "note-attempt").exists(), "its end is explained, so it counts as no loss"
    done = greedy(tmp_path / "other", share=0.9)
    assert done.stdout == "in its share\n" and not (tmp_path / "other").exists()


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_is_what_is_shared(tmp_path, version):
    limit = tmp_path / "limit"
    limit.write_text(f"{2**20}\n")
    files = (str(limit), "/none") if version == 1 else ("/none", str(limit))
    script = f"import cse.tune.memory as m; m.get_system_memory.__defaults__ = {files!r}\n{GREEDY}"
    command = [sys.executable, "-c", script, str(tmp_path / "note"), "0.9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (137, ""), done.stderr
    limit.write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")  # none
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "in its share\n"), done.stderr


def test_the_next_attempt_holds_half(make_job):
    job, reports = make_job(), []
    folder = job.folder_of(CONFIG)
    folder.mkdir(parents=True)
    (folder / "attempt-1").touch()
    (folder / GROWN).write_text("24")
    run_trial(CONFIG, job, reports.append)
    assert reports[-1]["mini_batch_size"] == 12
    assert job.record_of(CONFIG).result["values"] == CONFIG | {"train.mini_batch_size": 12}


def test_a_trial_whose_workers_die_unexplained_is_given_up(make_job):
    job, reports = make_job(), []
    folder = job.folder_of(CONFIG)
    folder.mkdir(parents=True)
    (folder / "attempt-1").touch()
    run_trial(CONFIG, job, reports.append)  # once may be an accident
    assert reports[-1][METRIC] > WORST

    other = {"prompt.length": 2}
    folder = job.folder_of(other)
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f"attempt-{number}").touch()
    run_trial(other, job, reports.append)
    assert reports[-1][METRIC] == WORST
    assert job.record_of(other).reason.startswith("its worker died 2 times")


@pytest.mark.parametrize("held", [15, 9])
def test_what_outgrows_even_a_few_sentences_has_failed(make_job, held):
    job, reports = make_job(), []
    folder = job.folder_of(CONFIG)
    folder.mkdir(parents=True)
    (folder / GROWN).write_text(str(held))
    run_trial(CONFIG, job, reports.append)
    assert job.record_of(CONFIG).reason == f"out of memory, even with {held} sentences at once (train.mini_batch_size)"
