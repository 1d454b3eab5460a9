"""Child processes: stream their output, and leave nothing running when the parent stops."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from cse.stages.common import MISTAKE, TRY_LATER
from flows.repository import last_line_with

GRACE_SECONDS = 30.0  # for a stage to save its state after SIGTERM
LAST_LINES = 15
# hints that DVC prints for a person at a terminal
HINTS = re.compile(
    r"(To track the changes with git|To enable auto staging|Use `dvc push` to send|\s*git add |\s*dvc config core\.)"
)
_SIGNALS = {-9: "SIGKILL", 137: "SIGKILL", -15: "SIGTERM", 143: "SIGTERM"}


class CommandError(RuntimeError):
    """A command, or a stage it ran, failed."""

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
    """Run DVC, wait for its lock, and pass on each line that DVC or a stage prints.

    Args:
        arguments: after ``dvc --wait-for-lock``.
        each_line: called with every line that is not blank.

    Raises:
        CommandError: an exit code other than 0.
    """
    _run("dvc", ["-m", "dvc", "--wait-for-lock", *arguments], root, each_line, environment)


def run_module(
    module: str,
    arguments: Sequence[str],
    root: Path,
    each_line: Callable[[str], object],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a module of the project, ``cse.cli`` for instance, as ``run_dvc`` runs DVC."""
    _run("cse", ["-m", module, *arguments], root, each_line, environment)


def _run(
    name: str,
    arguments: Sequence[str],
    root: Path,
    each_line: Callable[[str], object],
    environment: Mapping[str, str] | None,
) -> None:
    # stages find this Python first
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    # no new session: a Prefect worker stops the process group of a cancelled run
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
        copy_lines()  # the stage's last words when it is stopped
        process.wait()
        raise
    if code:
        raise CommandError(name, code, last)


def end(pid: int) -> None:
    """Stop a process and its descendants by id: SIGTERM, then SIGKILL for any left after the grace time."""
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


def explain(stage: str, code: int, lines: Sequence[str]) -> tuple[str, bool]:
    """Return why a stage failed and what to do, and whether a retry may succeed.

    Args:
        lines: the last lines of DVC and the stage.
    """
    text = "\n".join(lines)
    exited = re.search(r"exited with (-?\d+)", text)
    stage_code = int(exited[1]) if exited else code
    reason = last_line_with((line for line in lines if line.startswith("error: ")), "error: ")
    if reason and stage_code in (MISTAKE, TRY_LATER):
        return f"{stage}: {reason.removeprefix('error: ')}", stage_code == TRY_LATER
    if stage_code in _SIGNALS:
        return (
            f"{stage}: killed from outside ({_SIGNALS[stage_code]}); if nobody did this, it was probably out of "
            "memory: lower train.batch_size or train.max_length. Run it again: training resumes from its last "
            "saved state",
            True,
        )
    if "is busy, it is being blocked by" in text:
        blocker = last_line_with(lines, "(PID ") or ""
        return f"{stage}: another DVC process is using its files: {blocker.strip()}; wait for it, or stop it", True
    if "No space left on device" in text:
        return f"{stage}: no space left on the disk; free some (try `dvc gc --workspace`) and run again", False
    dvc_says = last_line_with((line for line in lines if line.startswith("ERROR: ")), "ERROR: ")
    if exited is None and dvc_says:
        return f"{stage}: DVC says: {dvc_says.removeprefix('ERROR: ')}", False
    tail = "\n".join(lines)
    return (
        f"{stage}: stopped by an unexpected error (exit code {stage_code}); run `dvc repro {stage}` in the "
        f"project's folder to see all of it. Last lines:\n{tail}",
        False,
    )
