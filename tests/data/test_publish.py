"""Outputs appear whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cse.files import publish_file, publish_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_replaces_the_old_one(tmp_path):
    for text in ("first", "second"):
        with publish_folder(tmp_path / "deep/out") as folder:
            (folder / f"{text}.txt").write_text(text, encoding="utf-8")
            assert not (tmp_path / "deep/out" / f"{text}.txt").exists()
    assert names(tmp_path / "deep/out") == ["second.txt"]
    assert names(tmp_path / "deep") == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_error_leaves_the_old_output_and_no_litter(tmp_path, error):
    out, file = tmp_path / "out", tmp_path / "file.json"
    out.mkdir()
    (out / "old.txt").write_text("old", encoding="utf-8")
    file.write_text("old", encoding="utf-8")
    with pytest.raises(error), publish_folder(out) as folder:
        (folder / "new.txt").write_text("new", encoding="utf-8")
        raise error
    with pytest.raises(error), publish_file(file) as new:
        new.write_text("new", encoding="utf-8")
        raise error
    assert names(tmp_path) == ["file.json", "out"]
    assert (out / "old.txt").read_text(encoding="utf-8") == file.read_text(encoding="utf-8") == "old"


def test_an_error_while_moving_in_puts_the_old_output_back(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old", encoding="utf-8")
    rename = Path.rename

    def fail_to_move_in(self, target):
        if ".tmp-" in self.name:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_to_move_in)
    with pytest.raises(OSError, match="No space"), publish_folder(out):
        pass
    assert names(tmp_path) == ["out"]
    assert names(out) == ["old.txt"]


def test_a_file_replaces_the_old_one(tmp_path):
    for text in ("first", "second"):
        with publish_file(tmp_path / "a.json") as new:
            new.write_text(text, encoding="utf-8")
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "second"
    assert names(tmp_path) == ["a.json"]


def test_what_a_killed_process_left_is_tidied(tmp_path):
    out = tmp_path / "out"
    killed = (
        "import os, sys; from pathlib import Path; from cse.files import publish_folder\n"
        "with publish_folder(Path(sys.argv[1])) as folder:\n    (folder / 'x').touch(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(out)], check=False).returncode == 9
    assert len(names(tmp_path)) == 1
    (tmp_path / f".out.tmp-{os.getppid()}-0").mkdir()
    (tmp_path / f".out.tmp-{os.getpid()}-999999").mkdir()
    with publish_folder(out):
        pass
    assert names(tmp_path) == [f".out.tmp-{os.getppid()}-0", "out"]


def test_an_output_lost_between_two_renames_comes_back(tmp_path):
    out = tmp_path / "out"
    lost = tmp_path / ".out.old-999999999-0"
    lost.mkdir()
    (lost / "old.txt").touch()
    with pytest.raises(RuntimeError), publish_folder(out):
        raise RuntimeError
    assert names(tmp_path) == ["out"]
    assert names(out) == ["old.txt"]
