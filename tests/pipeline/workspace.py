"""A clone of the working tree with a tiny random backbone and a few made-up rows: the whole pipeline in seconds."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from cse.settings.load import check_known, set_key
from tests.cli.workspace import contents
from tests.pipeline.forking import launchers
from tests.rows import write_table
from tests.tiny import WORDS, make_backbone_folder

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv/bin" if (ROOT / ".venv/bin/dvc").exists() else Path(sys.executable).parent
RAW = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("data/raw/*/README.md"))
FILES = (
    *("dvc.yaml", "params.yaml", "prefect.yaml"),
    *(".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "data/.gitignore", *RAW),
)
FOLDERS = ("cse", "flows", ".dvc/plots")
STAGES = ("prepare", "train", "evaluate", "export")
TINY = {
    "data.source": "files",
    "backbone.name": "backbone",
    "prompt.length": 4,
    "train.batch_size": 8,
    "train.max_length": 12,
    "train.precision": "fp32",
    "train.eval_every": 10,
}


class Workspace:
    """A folder with a git repository in which ``dvc`` can be run as a user would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # what a user's shell has: byte code is written, the virtual environment comes first
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
            "OMP_NUM_THREADS": "1",  # tiny models; two threads that wait for a busy core spin
            "PATH": os.pathsep.join([str(launchers(str(BIN / "python"))), str(BIN), os.environ["PATH"]]),
            "DVC_NO_ANALYTICS": "1",
            "DVC_SITE_CACHE_DIR": str(folder.parent / "dvc-site"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }

    @property
    def python(self) -> str:
        """The Python whose stages are forked."""
        return self.environment["PATH"].split(os.pathsep, 1)[0] + "/python"

    @property
    def real_environment(self) -> dict[str, str]:
        """The environment in which commands start as a user's do, not forked: for tests that lose or kill processes."""
        _, path = self.environment["PATH"].split(os.pathsep, 1)
        return self.environment | {"PATH": path}

    def run(self, *command: str, fails: bool = False, **options: Any) -> str:
        """Run a command here and return what it wrote, both streams together."""
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=1500)  # on a machine with much else to do
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the stage too, not only dvc
            process.wait()
            raise
        assert (process.returncode != 0) == fails, f"{command} returned {process.returncode}:\n{output}"
        return output

    def dvc(self, *arguments: str, **options: Any) -> str:
        return self.run("dvc", *arguments, **options)

    def commit(self) -> None:
        self.run("git", "add", "--all")
        if self.run("git", "status", "--short"):
            self.run("git", "commit", "--quiet", "--message", "work")

    def set(self, values: Mapping[str, Any]) -> None:
        """Change or add values of ``params.yaml`` by dotted key."""
        yaml, file = YAML(), self.folder / "params.yaml"
        tree = yaml.load(file)
        for key, value in values.items():
            check_known(key)
            set_key(tree, key, value)
        yaml.dump(tree, file)

    def lock(self) -> str:
        return (self.folder / "dvc.lock").read_text(encoding="utf-8")

    def locked_stages(self) -> dict[str, Any]:
        return YAML(typ="safe", pure=True).load(self.lock())["stages"]

    def bytes_of(self, folder: str) -> dict[str, bytes]:
        """Return the bytes of every file below a folder."""
        found = contents(self.folder / folder)
        assert found, f"nothing in {folder}"
        return found

    def times(self) -> dict[Path, int]:
        """Return the modification time of every file that git or DVC would keep."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        parts, hidden = len(self.folder.parts), {".git", "__pycache__", "tmp"}
        return {path: path.stat().st_mtime_ns for path in files if hidden.isdisjoint(path.parts[parts:])}

    def leftovers(self) -> list[Path]:
        """Return temporary siblings of outputs."""
        return [path for kind in ("tmp", "old") for path in (self.folder / "data").rglob(f".*.cse-{kind}-*")]

    def copy(self, folder: Path) -> Workspace:
        shutil.copytree(self.folder, folder, symlinks=True)
        return Workspace(folder)


def clone(folder: Path, *more: str) -> Workspace:
    """Copy what git would hold of the working tree into a fresh repository: what the pipeline needs, and ``more``."""
    for name in (*FOLDERS, *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    workspace = Workspace(folder)
    workspace.run("git", "init", "--quiet", "--initial-branch", "main")
    workspace.commit()
    return workspace


def tiny_clone(folder: Path, **changes: Any) -> Workspace:
    """Make a clone that trains a tiny random BERT on 160 made-up triplets; ``train__seed=1`` sets ``train.seed``."""
    workspace = clone(folder)
    make_backbone_folder(folder / "backbone", "bert", pooling="mean")
    write_triplets(folder / "data/raw/train/rows.csv", 160)
    for seed, name in enumerate(("dev", "evaluation")):
        write_pairs(folder / f"data/raw/{name}/{name}.csv", 24, seed)
    workspace.set(TINY | {name.replace("__", "."): value for name, value in changes.items()})
    workspace.commit()
    return workspace


def write_triplets(path: Path, rows: int, seed: int = 0) -> None:
    words = random.Random(seed)
    write_table(path, ["sent0", "sent1", "hard_neg"], [[_sentence(words) for _ in range(3)] for _ in range(rows)])


def write_pairs(path: Path, rows: int, seed: int) -> None:
    words = random.Random(f"pairs {seed}")
    table = [[_sentence(words), _sentence(words), round(words.uniform(0, 5), 1)] for _ in range(rows)]
    write_table(path, ["sentence1", "sentence2", "score"], table)


def ran(output: str) -> list[str]:
    """Return the stages that ``dvc repro`` ran, in order."""
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage '")]


def _sentence(words: random.Random) -> str:
    return " ".join(words.choices(WORDS, k=words.randint(3, 8)))
