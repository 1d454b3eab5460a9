"""A project folder on a tiny backbone, for tests of the command line."""

import ctypes
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cse.cli import main
from cse.data.store import TRAIN_FILE, write_rows
from cse.data.tasks.kinds import ScoredPairs
from cse.data.tasks.store import write_tasks
from cse.outputs import Kind, publish_folder
from tests.tiny import WORDS, write_report


@dataclass
class Outcome:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    def refused(self) -> str:
        """The one line that a user's mistake ends with."""
        assert self.code == 2, f"exit code {self.code}: {self.out}{self.err}"
        assert self.err.endswith("\n")
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")


def write_prepared(folder: Path, rows: int = 24, pairs: int = 30) -> Path:
    """Prepared data of known words: triplets, dev pairs and two tasks; the score is the share of common words."""
    rng = np.random.default_rng(5)

    def text() -> list[str]:
        return list(rng.choice(WORDS, int(rng.integers(2, 8)), replace=False))

    def scored(name: str) -> ScoredPairs:
        drawn = [(a := text(), a[: int(rng.integers(0, len(a) + 1))] + text()) for _ in range(pairs)]
        score = [len({*a} & {*b}) / len({*a} | {*b}) for a, b in drawn]
        first, second = ([" ".join(pair[side]) for pair in drawn] for side in (0, 1))
        return ScoredPairs(name, first, second, np.array(score))

    triplets = [(" ".join(a), " ".join(a[:-1] or a), " ".join(text())) for a in (text() for _ in range(rows))]
    with publish_folder(folder, Kind.PREPARED_DATA) as draft:
        write_rows(draft / TRAIN_FILE, "triplets", triplets)
        write_tasks(draft, dev=scored("dev"), test=[scored("near"), scored("far")])
        write_report(draft, "triplets", rows)
    return folder


def write_params(path: Path, backbone: Path) -> Path:
    """Settings that train the tiny backbone in a second."""
    path.write_text(
        f"backbone: {{name: {backbone}}}\nprompt: {{length: 4}}\npooler: {{kind: mean}}\n"
        "train: {batch_size: 8, max_length: 16, precision: fp32, device: cpu, eval_every: 2, save_seconds: 0}\n"
        "evaluation: {device: cpu}\n"
    )
    return path


def work(folder: Path, *commands: Sequence[str]) -> None:
    """Run commands in a folder, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in commands:
            patch.setattr(sys, "argv", ["cse", *command])
            with pytest.raises(SystemExit) as left:
                main()
            assert left.value.code == 0


@contextmanager
def full_disk(file_bytes: int) -> Iterator[None]:
    """A disk on which no file may grow beyond ``file_bytes``: writing more fails with EFBIG, as ENOSPC would.

    Python keeps no byte code meanwhile: it takes a file cut off at the limit for whole, and every later process that
    imports the module ends with an EOFError.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    keeps_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = keeps_none


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder below which nothing can be written, as on a disk that is mounted read-only.

    For root too: what lets it write whatever the permissions say is put aside (capset, Linux).
    """
    modes = {path: path.stat().st_mode for path in [folder, *folder.rglob("*")]}
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    powers = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    assert libc.capget(header, powers) == 0
    before = powers[0]
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    powers[0] = before & ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, powers) == 0
    try:
        yield
    finally:
        powers[0] = before
        assert libc.capset(header, powers) == 0
        for path, mode in modes.items():
            path.chmod(mode)


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a path, by name; a file alone is named by an empty string."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
