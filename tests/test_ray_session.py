"""Folders of Ray's own: in use while a lock is held, removed when nobody holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cse.ray_session import _own_folder
from tests.waiting import wait_for

KILLED = """
import os
from cse.ray_session import _own_folder
with _own_folder() as folder:
    print(folder, flush=True)
    os._exit(9)
"""


def test_only_folders_that_nobody_uses_are_removed(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    mine = left.with_name(f"cse-ray-999999999-{os.getpid()}")  # the name alone makes it nobody's
    mine.mkdir()
    try:
        assert left.is_dir()
        with _own_folder() as first:
            assert not left.exists()
            with _own_folder() as second:
                assert first.is_dir()
                assert second != first
            assert not second.exists()
            assert first.is_dir()
            assert mine.is_dir()
        assert not first.exists()
    finally:
        mine.rmdir()


STARTS = """
import time
from cse.ray_session import ray_session
with ray_session(dashboard=True):
    time.sleep(60)
"""


def of_session(pid):
    """The processes of the private Ray instance of a process."""
    named = f"/cse-ray-{pid}-"
    found = [each for each in psutil.process_iter(["cmdline"]) if named in " ".join(each.info["cmdline"] or ())]
    return [" ".join(each.info["cmdline"])[:200] for each in found if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["gcs_server", "raylet/raylet", "agent"])
def test_sigterm_while_ray_starts_ends_all_that_was_started(part):
    process = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(part in each for each in of_session(process.pid)) or process.poll() is not None)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert of_session(process.pid) == []
