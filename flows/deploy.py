"""What ``prefect deploy`` loads: the flows, and what the deployments in ``prefect.yaml`` need.

Prefect loads a deployment's module before it looks for the work pool, and rejects a missing one; so the pools are
created here when the module is loaded for deploying. A worker that loads it to run a flow creates none.
"""

from __future__ import annotations

import os

from flows.command_flows import adapt_cse, evaluate_cse, export_cse, index_cse, tune_cse
from flows.repository import find_root, git, has_origin
from flows.train_cse import train_cse

__all__ = ["adapt_cse", "evaluate_cse", "export_cse", "index_cse", "source", "train_cse", "tune_cse"]

# Runs at once in a pool; a GPU worker serves one device. Keep their `command` unset, or a worker does not stop
# the whole process group of a cancelled run.
POOLS = {"cse-local": None, "cse-gpu": 1}


def source() -> dict[str, str | None]:
    """Return where workers get the project from: a step of ``prefect.yaml``.

    Returns:
        ``folder`` of the project here; ``repository``, git's ``origin`` or this folder without one; ``branch``,
        None if none is checked out (workers then clone the default branch).
    """
    root = find_root()
    return {
        "folder": str(root),
        "repository": git(root, "remote", "get-url", "origin") if has_origin(root) else root.as_uri(),
        "branch": git(root, "branch", "--show-current") or None,
    }


def make_pools() -> None:
    """Create the work pools that the server lacks; leave the others alone."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        for name, limit in POOLS.items():
            pool = WorkPoolCreate(name=name, type="process", base_job_template=template, concurrency_limit=limit)
            try:
                client.create_work_pool(pool)
            except ObjectAlreadyExists:
                continue


if "PREFECT__FLOW_RUN_ID" not in os.environ:
    make_pools()
