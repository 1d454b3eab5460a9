"""A Ray of one's own on this machine, or the cluster that ``RAY_ADDRESS`` names."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from cse.errors import CseError
from cse.runtime.providers import usable_cpus

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # or the working folder would be uploaded to every worker
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without a GPU of its own keeps the variables of CUDA
    "RAY_DEDUP_LOGS": "1",
}


@contextmanager
def ray_session(*, dashboard: bool = False, variables: dict[str, str] | None = None) -> Iterator[Any]:
    """Yield the ``ray`` module, connected; what was started here is stopped and removed at the end.

    A Ray of one's own dies with this process, however that dies. SIGTERM ends the block as ``SystemExit``.

    Args:
        dashboard: whether to serve Ray's dashboard on loopback.
        variables: environment of the workers.

    Raises:
        CseError: the cluster of ``RAY_ADDRESS`` does not answer.
    """
    os.environ |= {name: value for name, value in _QUIET.items() if name not in os.environ}
    import ray

    address = os.environ.get("RAY_ADDRESS")
    own = _own_folder() if address is None else None
    common: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": _paths() | (variables or {})},
    }
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        if own is None:
            ray.init(address=address, **common)
        else:
            ray.init(
                num_cpus=usable_cpus(),
                include_dashboard=dashboard,
                dashboard_host="127.0.0.1",
                _temp_dir=str(own),
                **common,
            )
        yield ray
    except ConnectionError as error:
        raise CseError(
            f"RAY_ADDRESS {address}: no Ray cluster answers there; `ray status` shows one ({error})"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        ray.shutdown()
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)


def _own_folder() -> Path:
    """Make a folder for sockets and logs, and remove those of processes that were killed.

    It is short and not where the user's temporary files are: the paths of Ray's sockets may have 107 characters.
    """
    for folder in Path("/tmp").glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))


def _paths() -> dict[str, str]:
    """Let workers on this machine import what this process imports."""
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in (str(_PROJECT), *sys.path) if path))}


_PROJECT = Path(__file__).parents[2]
_PREFIX = "cse-ray-"
