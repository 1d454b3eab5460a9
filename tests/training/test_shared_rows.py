"""Rows of a training where machines share no disk, on a file system in memory in place of a bucket."""

from __future__ import annotations

import tempfile

import pytest

from cse.storage import filesystem
from cse.training.workers import SharedRows


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.arrow").write_bytes(b"rows")
    made = SharedRows(f"memory://{tmp_path.name}/run", "run")
    made.put({"prepared": tmp_path / "own"})
    return made


def test_rows_come_to_a_machine_once_and_go_again(rows):
    assert (rows.here() / "prepared/train.arrow").read_bytes() == b"rows"
    filesystem(rows.url)[0].rm(f"{filesystem(rows.url)[1]}/rows/prepared", recursive=True)
    assert (rows.here() / "prepared/train.arrow").is_file(), "the copy serves"
    rows.remove_here()
    assert not rows.place.exists()


def test_a_bucket_that_keeps_the_rows_ends_no_training(rows, capsys):
    rows.remove()
    assert capsys.readouterr().err == ""
    rows.remove()  # gone: the file system raises
    assert capsys.readouterr().err.startswith(f"left behind, delete it yourself: {rows.url}: cannot be written: File")
