"""Tokenised rows that processes share: made once, mapped, and what a batch reads is the same."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np

from cse.training.batch import pad_in_groups
from cse.training.tokens import shared_table
from tests.training.helpers import make_table

ROWS = np.array([3, 17, 0, 9])


def same_slices(first, second):
    slices = [pad_in_groups(table, ROWS, 3) for table in (first, second)]
    for one, other in zip(*slices, strict=True):
        for name in ("places", "ids_BL", "mask_BL", "views", "starts"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_a_shared_table_reads_like_one_of_ones_own(bert, tmp_path):
    own = replace(make_table(bert), keys=np.arange(40)[:, None] % 7)
    shared = shared_table(tmp_path / "table.pt", lambda: own)
    same_slices(own, shared)
    assert np.array_equal(own.keys, shared.keys)
    mapped = Path("/proc/self/maps").read_text()
    assert mapped.count(str(tmp_path / "table.pt")), "processes share the pages"

    def never():
        raise AssertionError("made twice")

    same_slices(own, shared_table(tmp_path / "table.pt", never))


WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from cse.runtime.tokens import Tokens
from cse.training.tokens import TokenTable, shared_table
folder = Path(sys.argv[1])
def make():
    (folder / f"made-{sys.argv[2]}").touch()
    time.sleep(1)
    return TokenTable((Tokens(np.arange(6, dtype=np.int32), np.array([0, 2, 6]), 0),), 0)
print(shared_table(folder / "table.pt", make).columns[0].ids.sum())
"""


def test_of_two_processes_one_makes_it(tmp_path, forking_python):
    processes = [
        subprocess.Popen([forking_python, "-c", WRITER, tmp_path, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    assert [process.communicate(timeout=240)[0].strip() for process in processes] == ["15", "15"]
    assert len(list(tmp_path.glob("made-*"))) == 1
