"""Flow ``watch-data``: tell Prefect when the input of ``prepare`` has changed, so that it can retrain.

The event is ``cse.data-changed``; ``train-cse/local`` has a trigger on it in ``prefect.yaml``. This flow's own schedule
is off by default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas import State
from prefect.events import emit_event
from prefect.states import Completed, Failed

from cse.errors import CseError
from cse.files import fingerprint
from flows.repository import check_no_conflict, dvc_errors, find_root, git

EVENT = "cse.data-changed"
_SEEN = "cse-data-seen"


@flow(name="watch-data")
def watch_data(pull: bool = False) -> State[Any]:
    """Compare the data with the last run, and emit an event the first time they differ.

    Args:
        pull: first update the working tree from git's origin (fast-forward only).
    """
    try:
        root = find_root()
        if pull:
            git(root, "pull", "--quiet", "--ff-only")
        check_no_conflict(root)
        changed = data_changes(root)
    except CseError as error:
        return Failed(message=str(error))
    if not changed:
        return Completed(message="data unchanged since the last run")
    version = fingerprint(changed)[:12]
    seen = root / ".dvc/tmp" / _SEEN
    if seen.is_file() and seen.read_text(encoding="utf-8") == version:
        return Completed(message=f"data version {version} was already reported")
    emit_event(
        event=EVENT,
        resource={"prefect.resource.id": f"cse.data.{root.name}", "cse.data-version": version},
        payload={"changed": sorted(changed)},
    )
    seen.parent.mkdir(parents=True, exist_ok=True)
    seen.write_text(version, encoding="utf-8")
    get_run_logger().info("changed: %s", ", ".join(sorted(changed)))
    return Completed(message=f"data version {version}: {', '.join(sorted(changed))}")


def data_changes(root: Path) -> dict[str, str]:
    """Return the inputs of stage ``prepare`` that differ from ``dvc.lock``: hashes by path.

    Raises:
        CseError: DVC cannot read the project.
    """
    from dvc.repo import Repo

    found = {}
    with dvc_errors(root), Repo(str(root)) as repo, repo.lock:
        for stage in repo.stage.collect("prepare"):
            for dep in stage.deps:
                path = str(dep)
                if not path.startswith("cse/") and hasattr(dep, "workspace_status") and dep.workspace_status():
                    found[path] = str(dep.get_hash().value) if dep.exists else "deleted"
    return found
