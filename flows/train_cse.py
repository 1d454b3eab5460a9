"""Flow ``train-cse``: one task per stage of ``dvc.yaml``, in the order of DVC's graph.

DVC is the cache and decides what has to run; a stage added to ``dvc.yaml`` is a task of the next run.
``python -m flows.train_cse`` runs the flow here, in the DVC repository around the working folder.
"""

from __future__ import annotations

import signal
import sys
from graphlib import TopologicalSorter
from pathlib import Path

from dvc.repo import Repo  # type: ignore[import-untyped]
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from flows.processes import DvcError, run_dvc


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
    try:
        run_dvc(["repro", "--single-item", stage], root, lambda line: log.info("%s", line))
    except DvcError as error:
        lines = "\n".join(error.last_lines)
        raise StageError(f"stage {stage!r} failed ({error}); its last lines:\n{lines}") from None


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
