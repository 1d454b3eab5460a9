"""Rows of a training where machines share no disk, and what is left of it in a bucket (here: in memory)."""

from __future__ import annotations

from cse.storage import filesystem
from cse.training import Folders
from cse.training.workers import files_in, remove_run, unpacked


def test_rows_reach_a_machine_as_they_are(tmp_path):
    for name in ("prepared/tasks/dev.arrow", "prepared/train.arrow", "tokens/a.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    files = files_in(Folders(tmp_path / "prepared", tmp_path / "mined", tmp_path / "none", tmp_path / "tokens"))
    there = unpacked(files, tmp_path / "there")
    assert there.prepared / "train.arrow" in there.prepared.rglob("*") and not there.mined.exists()
    assert (there.prepared / "tasks/dev.arrow").read_bytes() == b"prepared/tasks/dev.arrow"
    assert (there.tokens / "a.pt").read_bytes() == b"tokens/a.pt"


def test_a_bucket_that_keeps_the_run_ends_no_training(tmp_path, capsys):
    url = f"memory://{tmp_path.name}/run"
    store, path = filesystem(url)
    store.pipe_file(f"{path}/state.pt", b"state")
    remove_run(store, path, url)
    assert not store.exists(path) and capsys.readouterr().err == ""
    remove_run(store, path, url)  # gone: the file system raises
    assert capsys.readouterr().err.startswith(f"left behind, delete it yourself: {url}: File")
