"""Outputs are atomic and replace only what this project wrote. All in throwaway folders."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cse.artifact import is_whole
from cse.errors import CseError
from cse.files import begins_with, is_json_with
from cse.outputs import Kind, check_file, check_folder, publish_file, publish_folder
from tests.cli.workspace import contents
from tests.parts import refusal as said
from tests.rows import write_lines

IS_NPY = begins_with(b"\x93NUMPY")
HOST = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in socket.gethostname())
MANIFEST = Kind.CHECKPOINT.manifest
DEAD = 999999999  # no system gives such a process id


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(folder, *names, text="mine"):
    for name in names:
        write_lines(folder / name, [text])


def publish(out, name="first.txt", kind=Kind.CHECKPOINT):
    with publish_folder(out, kind) as folder:
        write(folder, name)
        assert not (out / name).exists()


def test_a_folder_replaces_an_empty_and_an_old_one(tmp_path):
    (out := tmp_path / "deep/out").mkdir(parents=True)
    for name in ("part/first.txt", "part/second.txt"):
        publish(out, name, Kind.BUNDLE)
    assert names(out / "part") == ["second.txt"]
    assert names(tmp_path / "deep") == ["out"]
    manifest = json.loads((out / Kind.BUNDLE.manifest).read_text(encoding="utf-8"))
    assert manifest["kind"] == "bundle" and list(manifest["files"]) == ["part/second.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_output_and_no_litter(tmp_path, monkeypatch, error):
    publish(out := tmp_path / "out")
    write(tmp_path, "file.json")
    before, rename = contents(tmp_path), Path.rename
    with pytest.raises(error), publish_folder(out, Kind.CHECKPOINT) as folder:
        write(folder, "new.txt")
        raise error
    with pytest.raises(error), publish_file(tmp_path / "file.json") as new:
        new.write_text("new", encoding="utf-8")
        raise error

    def fail_to_move_in(self, target):
        if ".cse-tmp-" in self.name:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_to_move_in)
    with pytest.raises(OSError, match="No space"), publish_folder(out, Kind.CHECKPOINT):
        pass
    assert contents(tmp_path) == before
    assert names(tmp_path) == ["file.json", "out"]


def test_a_link_stands_for_what_it_leads_to(tmp_path):
    publish(tmp_path / "big-disk/out")
    write(tmp_path / "big-disk", "a.json")
    for name in ("out", "a.json"):
        (tmp_path / name).symlink_to(tmp_path / "big-disk" / name)
    publish(tmp_path / "out", "second.txt")
    with publish_file(tmp_path / "a.json") as new:
        new.write_text("[]", encoding="utf-8")
    assert (tmp_path / "out").is_symlink() and (tmp_path / "a.json").is_symlink()
    assert set(contents(tmp_path / "big-disk")) == {"a.json", f"out/{MANIFEST}", "out/second.txt"}
    assert (tmp_path / "big-disk/a.json").read_text(encoding="utf-8") == "[]"


KILLED = """
import os, sys
from pathlib import Path
from cse import outputs

where, left = {"write": (Path, "mkdir"), "hash": (outputs, "sha256"), "rename": (Path, "rename"),
               "remove": (outputs, "remove_output")}[sys.argv[2]], int(sys.argv[3])
real = getattr(*where)

def watched(*given, **named):
    global left
    left -= 1
    return real(*given, **named) if left >= 0 else os.kill(os.getpid(), 9)

with outputs.publish_folder(Path(sys.argv[1]), outputs.Kind.PLOTS) as folder:
    setattr(*where, watched)
    (folder / "more").mkdir()
    for name in ("a.csv", "more/b.csv"):
        (folder / name).write_text("new")
"""


@pytest.mark.parametrize(
    ("moment", "call", "old"),
    [
        *[(moment, 0, old) for moment in ("write", "hash", "rename", "remove") for old in (True, False)],
        ("hash", 1, True),
        ("rename", 1, True),  # between the two renames
    ],
)
def test_a_killed_writer_leaves_an_output_whole_and_nothing_that_the_next_does_not_clear(tmp_path, moment, call, old):
    out, before = tmp_path / "out", {}
    if old:
        publish(out, kind=Kind.PLOTS)
        before = contents(out)
    done = subprocess.run([sys.executable, "-c", KILLED, str(out), moment, str(call)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert is_whole(out) or not old or any(map(is_whole, tmp_path.glob(".out.cse-old-*")))
    with pytest.raises(RuntimeError), publish_folder(out, Kind.PLOTS):
        raise RuntimeError
    assert names(tmp_path) == (["out"] if is_whole(out) else [])
    found = contents(out)
    assert found == before or {"a.csv": b"new", "more/b.csv": b"new"}.items() <= found.items()
    publish(out, "third.txt", Kind.PLOTS)
    assert names(tmp_path) == ["out"] and names(out) == ["manifest.json", "third.txt"]


def test_what_others_left_stays(tmp_path):
    at_work = [
        f".out.cse-tmp-{HOST}-{os.getppid()}-0",
        f".out.cse-tmp-another{HOST}-{DEAD}-0",  # a process id means nothing on another machine
        f".out.tmp-{DEAD}-0",  # a name that is not ours
        ".out.cse-tmp-mine",
    ]
    for name in at_work:
        (tmp_path / name).mkdir()
    publish(tmp_path / "out")
    assert names(tmp_path) == sorted([*at_work, "out"])


def refusal(out, kind=Kind.CHECKPOINT):
    """Why a place is refused, before work and at the end of it, with all below it as it was."""
    before = contents(out) if out.is_dir() else None
    with pytest.raises(CseError) as late, publish_folder(out, kind):
        raise AssertionError("work must not start")
    assert said(check_folder, out, kind) == str(late.value)
    assert before == (contents(out) if out.is_dir() else None)
    return str(late.value).removeprefix(f"{out}: ")


def test_a_folder_of_other_things_and_outputs_of_another_kind_are_refused(tmp_path):
    write(tmp_path / "mine", "a.txt", "deep/b.txt", "deep/c.txt", "deep/d.txt")
    text = "holds files that cse did not put there (a.txt, deep/b.txt, deep/c.txt and 1 more); choose another folder"
    assert refusal(tmp_path / "mine").startswith(text)
    publish(tmp_path / "models/tickets", kind=Kind.BUNDLE)
    assert refusal(tmp_path / "models/tickets").startswith("holds another kind of output (bundle, not checkpoint)")
    assert "did not put there (tickets/bundle.json, tickets/first.txt)" in refusal(tmp_path / "models", Kind.BUNDLE)


def test_a_manifest_that_is_none_and_a_file_of_somebody_else_make_no_output(tmp_path):
    publish(out := tmp_path / "out")
    whole = (out / MANIFEST).read_text(encoding="utf-8")
    for other in ("", "[]", "{}", '{"kind": "checkpoint"}', "[" * 100_000, '{"kind": 1, "files": 2}'):
        (out / MANIFEST).write_text(other, encoding="utf-8")
        assert "did not put there" in refusal(out)
    (out / MANIFEST).write_text(whole, encoding="utf-8")
    for mine in ("notes.txt", "part/notes.txt"):
        write(out, mine)
        assert f"did not put there ({mine})" in refusal(out)
        (out / mine).unlink()
    (out / "link").symlink_to(tmp_path)
    assert "did not put there (link)" in refusal(out)


def test_a_file_that_may_change_is_ours_whatever_it_holds(tmp_path):
    """The card of a model that was pulled, and a bank's domains."""
    out = tmp_path / "out"
    for text in ("first", "second"):
        with publish_folder(out, Kind.BANK, changing=("README.md", "domains/*")) as folder:
            write(folder, "README.md", "domains/a.safetensors", "model.onnx", text=text)
        files = json.loads((out / Kind.BANK.manifest).read_text(encoding="utf-8"))["files"]
        assert (files["README.md"], files["domains/a.safetensors"], len(files["model.onnx"])) == ("", "", 64)
        write(out, "README.md", text="edited")


def test_a_manifest_reaches_nothing_outside_its_folder(tmp_path):
    write(tmp_path, "mine.txt")
    publish(tmp_path / "out")
    facts = {"kind": "checkpoint", "files": dict.fromkeys(["first.txt", "../mine.txt", f"{tmp_path}/mine.txt"], "")}
    (tmp_path / "out" / MANIFEST).write_text(json.dumps(facts), encoding="utf-8")
    publish(tmp_path / "out", "second.txt")
    assert names(tmp_path / "out") == [MANIFEST, "second.txt"]
    assert names(tmp_path) == ["mine.txt", "out"]


def test_what_appears_during_the_work_or_slips_in_at_its_end_is_kept(tmp_path, monkeypatch):
    out, rename = tmp_path / "out", Path.rename
    publish(out)
    with pytest.raises(CseError, match=r"did not put there \(notes.txt\)"), publish_folder(out, Kind.CHECKPOINT):
        write(out, "notes.txt")
    assert names(out) == [MANIFEST, "first.txt", "notes.txt"] and names(tmp_path) == ["out"]
    (out / "notes.txt").unlink()

    def slip_in(self, target):
        if self == out:
            write(out, "notes.txt")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", slip_in)
    publish(out, "second.txt")
    assert len([*tmp_path.rglob("notes.txt")]) == 1


def test_places_that_are_never_replaced(tmp_path, monkeypatch):
    home, work = tmp_path / "home", tmp_path / "home/work/project"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    for place in (Path(), work, Path(".."), work.parent):
        assert refusal(place).startswith("is or contains the working folder")
    monkeypatch.chdir(tmp_path)
    assert refusal(home).startswith("is or contains your home folder")
    for name in (".git", ".dvc"):
        (tmp_path / f"clone{name}" / name).mkdir(parents=True)
        assert refusal(tmp_path / f"clone{name}").startswith("is the root of a repository")
    (tmp_path / "clone.git/.git").rmdir()
    write(tmp_path / "clone.git", ".git", text="gitdir: elsewhere")  # a worktree
    assert refusal(tmp_path / "clone.git").startswith("is the root of a repository")
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path / "disk")
    assert refusal(tmp_path / "disk").startswith("is a mount point")


SPECIAL = {
    "pipe": os.mkfifo,
    "broken link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "loop": lambda path: path.symlink_to(path),
    "file": lambda path: path.write_text("mine", encoding="utf-8"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_folders_are_replaced_by_folders_and_files_by_files(tmp_path, kind):
    SPECIAL[kind](out := tmp_path / "out")
    before = out.lstat().st_ino
    if kind != "folder":
        assert refusal(out) == "exists and is not a folder; choose another folder"
    if kind != "file":
        with pytest.raises(CseError, match="is not a regular file"), publish_file(out):
            raise AssertionError("work must not start")
        assert "is not a regular file" in said(check_file, out, IS_NPY)
    assert out.lstat().st_ino == before
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("content", "made_here", "taken"),
    [
        (b"\x93NUMPY\x01\x00", IS_NPY, True),
        (b"one sentence a line\n", IS_NPY, False),
        (b"", IS_NPY, True),
        (b'{"rows": 1, "rows_read": 2}', is_json_with("rows", "rows_read"), True),
        (b'{"name": "a package"}', is_json_with("rows", "rows_read"), False),
        (b'["rows", "rows_read"]', is_json_with("rows", "rows_read"), False),
        (b"\xff", is_json_with("rows"), False),
        (b"[" * 100_000, is_json_with("rows"), False),
        (b'{"trained": {"sts": 1}}', is_json_with(), True),
        (b'{"name": "a package"}', is_json_with(), False),
    ],
)
def test_a_file_of_another_sort_is_refused(tmp_path, content, made_here, taken):
    path = tmp_path / "out"
    check_file(path, made_here)  # nothing is there yet
    path.write_bytes(content)
    if taken:
        check_file(path, made_here)
    else:
        assert "is not an earlier output of this command" in said(check_file, path, made_here)
