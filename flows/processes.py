"""Child processes: their lines as they come, and nothing left running when the parent is stopped."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil  # comes with DVC

GRACE_SECONDS = 30.0  # for a stage to save its state after SIGTERM
LAST_LINES = 15


class CommandError(RuntimeError):
    """A command, or a stage that it ran, failed.

    Attributes:
        code: its exit code.
        last_lines: the end of what it wrote.
    """

    def __init__(self, name: str, code: int, last_lines: Sequence[str]) -> None:
        super().__init__(f"{name} returned {code}")
        self.code = code
        self.last_lines = list(last_lines)


def run_dvc(
    arguments: Sequence[str],
    root: Path,
    each_line: Callable[[str], object],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run DVC, waiting for its lock, and hand on each line that it or a stage writes.

    Args:
        arguments: after ``dvc --wait-for-lock``.
        root: folder of the DVC repository.
        each_line: called with every line that is not blank.
        environment: variables beside those of this process.

    Raises:
        CommandError: an exit code other than 0.
    """
    _run("dvc", ["-m", "dvc", "--wait-for-lock", *arguments], root, each_line, environment)


def run_cse(arguments: Sequence[str], root: Path, each_line: Callable[[str], object]) -> None:
    """Run a command of ``cse`` as ``run_dvc`` runs DVC."""
    _run("cse", ["-m", "cse.cli", *arguments], root, each_line, None)


def _run(
    name: str,
    arguments: Sequence[str],
    root: Path,
    each_line: Callable[[str], object],
    environment: Mapping[str, str] | None,
) -> None:
    # stages find this Python first
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    # no session of its own: a Prefect worker ends the process group of a cancelled run
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=root,
        env=os.environ | {"PATH": path} | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    last: deque[str] = deque(maxlen=LAST_LINES)

    def copy_lines() -> None:
        for line in process.stdout or ():
            if line := line.rstrip():
                last.append(line)
                each_line(line)

    try:
        copy_lines()
        code = process.wait()
    except BaseException:
        end(process.pid)
        copy_lines()  # what the stage says when it is stopped
        process.wait()
        raise
    if code:
        raise CommandError(name, code, last)


def end(pid: int) -> None:
    """End a process and all that it started, by id: SIGTERM, and SIGKILL for what stays longer than the grace time."""
    try:
        process = psutil.Process(pid)
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    for member in psutil.wait_procs(family, timeout=GRACE_SECONDS)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
