"""Each long command, ended by SIGKILL before any of the changes that it makes to files: run again, the same bytes."""

import signal
import subprocess
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.cli.workspace import contents, write_params, write_prepared
from tests.search.corpora import rows_of
from tests.tiny import WORDS

MOMENTS = 12
# Runs the command, kills its process group before a change of files below the working folder, and counts the changes.
COUNTING = """
import atexit, os, signal, sys
counts, last = sys.argv.pop(1), int(sys.argv.pop(1))
here, made = os.getcwd() + os.sep, 0
def count(event, given):
    global made
    changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
    writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
    if (changes or writes) and isinstance(given[0], (str, bytes)):
        if os.path.abspath(os.fsdecode(given[0])).startswith(here):
            made += 1
            if made == last:
                os.killpg(0, signal.SIGKILL)
sys.addaudithook(count)
atexit.register(lambda: open(counts, "w").write(str(made)))
from cse.cli import main
main()
"""
COMMANDS = {
    "prepare": (
        *("-s", "data.source=files", "-s", "data.train_path=lines.txt", "-s", "data.view=sentences"),
        *("-s", "data.max_words=9", "--out", "out"),
    ),
    "train": ("--data", "prepared", "--out", "out", "-s", "train.epochs=3"),
    "export": ("checkpoint", "--data", "prepared", "--out", "out"),
    "adapt": (
        *("--labels", "labels.csv", "--shared-backbone", "--budget", "2h", "--out", "out"),
        *("-s", "train.max_steps=10", "-s", "data.hold_out=0.1", "-s", "prompt.length=4", "-s", "train.batch_size=8"),
    ),
    "index": ("lines.txt", "--out", "out", "--model", "bundle", "--device", "cpu", "--kind", "exact"),
}


@pytest.fixture(scope="module")
def run(forking_python, tmp_path_factory):
    """Run a command in a folder, and return its exit code and how often it changed files there."""
    counts = tmp_path_factory.mktemp("counts") / "count"

    def running(folder: Path, *arguments: str, last: int = 0) -> tuple[int, int]:
        command = [forking_python, "-c", COUNTING, counts, last, *arguments]
        done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode, int(counts.read_text()) if done.returncode == 0 else last

    return running


@pytest.fixture(scope="module")
def start(tiny_folders, run, tmp_path_factory) -> Path:
    """A folder with settings, texts, labels, prepared data, a checkpoint and a bundle."""
    folder, random = tmp_path_factory.mktemp("start") / "folder", Random(0)
    folder.mkdir()
    write_params(folder / "params.yaml", tiny_folders["bert"])
    texts = [f"{' '.join(random.sample(WORDS, 5))} {number}" for number in range(70)]
    (folder / "lines.txt").write_text("\n".join(texts), encoding="utf-8")
    rows = [f"{text} {WORDS[number % 5]},label {number % 5}" for number, text in enumerate(texts)]
    (folder / "labels.csv").write_text("\n".join(["text,category", *rows]), encoding="utf-8")
    write_prepared(folder / "prepared")
    for name, out in (("train", "checkpoint"), ("export", "bundle")):
        assert run(folder, name, *(out if one == "out" else one for one in COMMANDS[name]))[0] == 0
    return folder


def made(folder: Path) -> dict[str, bytes]:
    """What a command made, byte for byte, but for how long it took; of an index its rows."""
    if (folder / "out/index.lance").is_dir():
        rows = rows_of(folder / "out")
        vectors = np.stack(rows["embedding"].to_pylist()).round(5)  # of other batches: equal but for the last digits
        return {"rows": repr(rows.drop_columns(["embedding"]).to_pydict()).encode(), "vectors": vectors.tobytes()}
    timed = {"ledger", "report", "summary.txt"}
    return {name: data for name, data in contents(folder / "out").items() if not timed & {*Path(name).parts}}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_change_of_files_it_ends_with_the_same_bytes(command, start, run, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        subprocess.run(["cp", "-r", start, folder], check=True)
    code, changes = run(whole, command, *COMMANDS[command])
    assert code == 0 and changes > 3
    kills = 0
    for moment in range(1, MOMENTS + 1):
        kills += run(killed, command, *COMMANDS[command], last=max(1, moment * changes // (MOMENTS + 1)))[0] != 0
    assert kills > 3, "what goes on where it was has less to change each time"
    assert run(killed, command, *COMMANDS[command])[0] == 0
    found, wanted = made(killed), made(whole)
    assert found.keys() == wanted.keys() and [name for name in wanted if found[name] != wanted[name]] == []
