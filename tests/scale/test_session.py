"""Folders of Ray's own: in use while a lock is held, removed when nobody holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cse.scale.session import _own_folder

KILLED = """
import os
from cse.scale.session import _own_folder
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
