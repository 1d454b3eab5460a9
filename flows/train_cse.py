"""Flow ``train-cse``: one task per stage of ``dvc.yaml``, in the order of DVC's graph.

DVC is the cache and decides what has to run; a stage added to ``dvc.yaml`` is a task of the next run.
``python -m flows.train_cse`` runs the flow here, in the DVC repository around the working folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from graphlib import TopologicalSorter
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # comes with DVC
from dvc.repo import Repo  # type: ignore[import-untyped]
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

GRACE_SECONDS = 30.0  # for a stage to save its state after SIGTERM
LAST_LINES = 15


class StageError(RuntimeError):
    """A stage failed; the message ends with the last lines that it wrote."""


def stages_in_order(root: Path) -> list[str]:
    """Return the names of the stages of ``dvc.yaml``, each after those that it depends on."""
    with Repo(str(root)) as repo:
        graph = repo.index.graph
        ours = {s: s.addressing for s in graph if getattr(s, "path_in_repo", "") == "dvc.yaml"}
        # DVC keeps stages in a set; sorted by name they come in the same order every time
        before = {s: sorted(graph.successors(s), key=str) for s in sorted(graph, key=str)}
        return [ours[s] for s in TopologicalSorter(before).static_order() if s in ours]


@task(task_run_name="{stage}", cache_policy=NO_CACHE)
def run_stage(stage: str, root: Path) -> None:
    """Bring one stage up to date and copy what it says into the run's log.

    Raises:
        StageError: DVC or the stage failed.
    """
    log = get_run_logger()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    # no session of its own: a Prefect worker ends the process group of a cancelled run
    process = subprocess.Popen(
        [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", stage],
        cwd=root,
        env=os.environ | {"PATH": path},
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
                log.info("%s", line)

    try:
        copy_lines()
        code = process.wait()
    except BaseException:
        end(process.pid)
        copy_lines()  # what the stage says when it is stopped
        process.wait()
        raise
    if code:
        raise StageError(f"stage {stage!r} failed (dvc returned {code}); its last lines:\n" + "\n".join(last))


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


@flow(name="train-cse")
def train_cse() -> None:
    """Run every stage that is out of date: prepare, train, evaluate, export and whatever ``dvc.yaml`` adds."""
    root = Path(Repo.find_root())
    for stage in stages_in_order(root):
        run_stage(stage, root)


if __name__ == "__main__":
    # Prefect hands SIGTERM on when the flow has ended; leaving in order is what stops its temporary server
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        train_cse()
    except StageError as error:
        sys.exit(f"error: {error}")
