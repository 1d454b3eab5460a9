"""A private Ray instance on this machine, or the cluster at ``RAY_ADDRESS``."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from cse.errors import CseError, error_line
from cse.process import handling, throwaway_folder
from cse.runtime.providers import usable_cpus

ADDRESS = "RAY_ADDRESS"
_PROJECT = Path(__file__).parents[2]
_PREFIX = "cse-ray-"  # short, because socket paths in the folder are limited to 107 characters
_KNOCK_SECONDS = 10.0
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # do not upload the working folder to every worker
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers without a GPU keep their CUDA variables
    "RAY_worker_niceness": "0",  # run workers at normal priority
}


@contextmanager
def ray_session(
    *,
    cpus: int | None = None,
    dashboard: bool = False,
    store_bytes: int | None = None,
    variables: dict[str, str] | None = None,
) -> Iterator[Any]:
    """Yield the connected ``ray`` module; stop and remove anything started here at the end.

    A private Ray instance dies with this process, however it ends. SIGTERM raises ``SystemExit`` in the block.

    Args:
        cpus: CPUs of a private instance; None: those this process may use.
    """
    os.environ |= {name: value for name, value in _QUIET.items() if name not in os.environ}
    address = os.environ.get(ADDRESS)
    if address and _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as `ray start` does if there is a token
    import ray

    common: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": _paths() | (variables or {})},
    }
    with ExitStack() as stack:
        stack.enter_context(handling(_exit, signal.SIGTERM))
        if address:
            stack.callback(ray.shutdown)
            _join(ray, address, common)
        else:
            folder = stack.enter_context(_own_folder())
            stack.callback(_end_processes_of, folder)
            stack.callback(ray.shutdown)
            alone = {
                "address": "local",
                "num_cpus": cpus or usable_cpus(),
                "include_dashboard": dashboard,
                "dashboard_host": "127.0.0.1",
                "object_store_memory": store_bytes,
                "_temp_dir": str(folder),
            }
            try:
                ray.init(**alone, **common)
            except Exception as error:  # RuntimeError, ValueError or OSError, depending on the cause
                raise CseError(
                    f"Ray does not start on this machine ({error_line(error)[:200]}); run again, "
                    f"or name a running cluster in {ADDRESS}"
                ) from None
            except SystemExit:  # of SIGTERM, for which Ray has its own handlers meanwhile and other exit codes
                _exit(signal.SIGTERM)
        logging.getLogger("ray").setLevel(logging.ERROR)
        stack.enter_context(handling(_exit, signal.SIGTERM))  # Ray put one of its own there, which prints a trace
        yield ray


def _end_processes_of(folder: Path) -> None:
    """End what is left of a private Ray instance: agents outlive one that was stopped while it started."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            with suppress(psutil.Error):
                process.kill()


def _exit(number: int) -> None:
    sys.exit(128 + number)


def _has_token() -> bool:
    """Return whether this user has a token for Ray clusters in a place where Ray looks for one."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").is_file()


def _join(ray: Any, address: str, options: dict[str, Any]) -> None:
    try:
        _knock(address)
        ray.init(address=address, **options)
    except Exception as error:  # ConnectionError, ValueError or RuntimeError, depending on the cause
        why = error_line(error)[:200]
        raise CseError(f"{ADDRESS}={address}: no Ray cluster answers ({why}); start it or unset {ADDRESS}") from None


def _knock(address: str) -> None:
    """Raise ``OSError`` if nothing listens; Ray itself would retry for minutes and then end the process."""
    host, colon, port = address.partition("://")[2].rpartition(":") if "://" in address else address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


@contextmanager
def _own_folder() -> Iterator[Path]:
    """Yield a folder for Ray's sockets and logs; remove it at the end, along with folders of killed runs."""
    base = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())  # short
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
    with throwaway_folder(folder, f"{_PREFIX}*", f"{folder}: in use by another process; run again"):
        yield folder


def _paths() -> dict[str, str]:
    """Let workers on this machine import what this process imports."""
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in (str(_PROJECT), *sys.path) if path))}
