"""Tokenised rows that processes share: made once, mapped, and what a batch reads is the same."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cse.training.batch import shared_table
from tests.training.helpers import make_table


def test_a_shared_table_reads_like_one_of_ones_own(bert, tmp_path):
    own = replace(make_table(bert), keys=np.arange(40)[:, None] % 7)
    shared = shared_table(tmp_path / "table.pt", lambda: own)
    assert str(tmp_path / "table.pt") in Path("/proc/self/maps").read_text(), "processes share the pages"
    for table in (shared, shared_table(tmp_path / "table.pt", lambda: pytest.fail("made twice"))):
        assert (table.pad_id, table.weight) == (own.pad_id, own.weight)
        assert np.array_equal(table.keys, own.keys)
        for found, column in zip(table.columns, own.columns, strict=True):
            assert np.array_equal(found.ids, column.ids) and np.array_equal(found.starts, column.starts)


WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from cse.runtime.tokens import Tokens
from cse.training.batch import TokenTable, shared_table
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
