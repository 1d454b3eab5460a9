"""Tokenised rows that processes share: made once, mapped, and what a batch reads is the same."""

from __future__ import annotations

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
