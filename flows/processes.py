"""Child processes: stream their output, say why one failed, and leave none running when the parent stops."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from cse.stages.common import MISTAKE, TRY_LATER

GRACE_SECONDS = 30.0  # for a stage to save its state after SIGTERM
LAST_LINES = 15
# hints that DVC prints for a person at a terminal
HINTS = re.compile(
    r"(To track the changes with git|To enable auto staging|Use `dvc push` to send|\s*git add |\s*dvc config core\.)"
)


class CommandError(RuntimeError):
    """A command, or a stage it ran, failed."""

    def __init__(self, module: str, code: int, last_lines: Sequence[str]) -> None:
        super().__init__(f"{module} returned {code}")
        self.code = code
        self.last_lines = list(last_lines)


def run_dvc(
    arguments: Sequence[str],
    root: Path,
    each_line: Callable[[str], object],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run DVC as ``run_module`` does, waiting for its lock."""
    run_module("dvc", ["--wait-for-lock", *arguments], root, each_line, environment)


def run_module(
    module: str,
    arguments: Sequence[str],
    root: Path,
    each_line: Callable[[str], object],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a Python module and pass on each line that is not blank; ``CommandError`` for an exit code other than 0."""
    # stages find this Python first
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    last: deque[str] = deque(maxlen=LAST_LINES)
    # no new session: a Prefect worker stops the process group of a cancelled run
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=root,
        env=os.environ | {"PATH": path} | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:

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
            raise
    if code:
        raise CommandError(module, code, last)


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


def last_after(mark: str, lines: Sequence[str]) -> str:
    """Return what stands after a mark in the last line that begins with it."""
    return next((line.removeprefix(mark) for line in reversed(lines) if line.startswith(mark)), "")


def explain(stage: str, code: int, lines: Sequence[str]) -> tuple[str, bool]:
    """Return why a stage failed and what to do, and whether a retry may succeed; from the last lines that it wrote."""
    text = "\n".join(lines)
    exited = re.search(r"exited with (-?\d+)", text)  # DVC's word on a stage
    code = int(exited[1]) if exited else code
    number = -code if code < 0 else code - 128
    ours, dvc_says = last_after("error: ", lines), last_after("ERROR: ", lines)
    if ours and code in (MISTAKE, TRY_LATER):
        return f"{stage}: {ours}", code == TRY_LATER
    if number in (signal.SIGKILL, signal.SIGTERM):
        return (
            f"{stage}: killed from outside ({signal.Signals(number).name}); if nobody did this, it was probably out of "
            "memory: lower train.batch_size or train.max_length. Run it again: training resumes from its last "
            "saved state"
        ), True
    if "is busy, it is being blocked by" in text:
        blocker = next((line.strip() for line in reversed(lines) if "(PID " in line), "")
        return f"{stage}: another DVC process is using its files: {blocker}; wait for it, or stop it", True
    if "No space left on device" in text:
        return f"{stage}: no space left on the disk; free some (try `dvc gc --workspace`) and run again", False
    if exited is None and dvc_says:
        return f"{stage}: DVC says: {dvc_says}", False
    return (
        f"{stage}: stopped by an unexpected error (exit code {code}); run `dvc repro {stage}` in the project's folder "
        f"to see all of it. Last lines:\n{text}"
    ), False
