"""A private Ray instance on this machine or the cluster at ``RAY_ADDRESS``, and what each of its machines has.

Ray places a worker on one machine as a whole: the sum over the cluster says nothing about what fits.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from cse.errors import CseError, error_line
from cse.process import handling, throwaway_folder, variables_set
from cse.runtime.session import usable_cpus

ADDRESS = "RAY_ADDRESS"
_PROJECT = Path(__file__).parents[1]
_PREFIX = "cse-ray-"  # short, because socket paths in the folder are limited to 107 characters
_KNOCK_SECONDS = 10.0
WAIT_SECONDS = 30.0  # between lines that say what a job waits for
_NEARLY = 1e-6  # shares of a GPU are rounded
_UNLIMITED = 1000  # machines of a kind
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # do not upload the working folder to every worker
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers without a GPU keep their CUDA variables
    "RAY_worker_niceness": "0",  # run workers at normal priority
    "RAY_task_oom_retries": "2",  # not for ever
}


@contextmanager
def ray_session(
    *,
    cpus: int | None = None,
    dashboard: bool = False,
    store_bytes: int | None = None,
    variables: dict[str, str] | None = None,
    preload: str = "",
) -> Iterator[Any]:
    """Yield the connected ``ray`` module; stop and remove anything started here at the end.

    A private Ray instance dies with this process, however it ends. SIGTERM raises ``SystemExit`` in the block.

    Args:
        cpus: CPUs of a private instance; None: those this process may use.
        preload: module that each worker of a private instance imports at once, while this process goes on.
    """
    os.environ |= {name: value for name, value in _QUIET.items() if name not in os.environ}
    address = os.environ.get(ADDRESS)
    if address and _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as `ray start` does if there is a token
    import ray

    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    variables = _paths() | (variables or {})
    with ExitStack() as stack:
        stack.enter_context(handling(_exit, signal.SIGTERM))
        if address:
            stack.callback(ray.shutdown)
            _join(ray, address, common | {"runtime_env": {"env_vars": variables}})
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
                # workers inherit them: a runtime environment would start each anew, at its first task
                with variables_set(variables | ({"RAY_preload_python_modules": preload} if preload else {})):
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


# ---- machines -------------------------------------------------------------------------------------------------------


class Machine(NamedTuple):
    """CPUs and GPUs of a machine, whether they are free or not."""

    cpus: float
    gpus: float

    def places(self, cpus: float, gpus: float) -> int:
        """Return how many workers that take so much it can hold."""
        by_gpu = int(self.gpus / gpus + _NEARLY) if gpus else None
        by_cpu = int(self.cpus / cpus + _NEARLY)
        return by_cpu if by_gpu is None else min(by_cpu, by_gpu)


def machines(ray: Any) -> list[Machine]:
    """Return the machines of the connected cluster."""
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [_machine(one) for one in there]


def with_more(ray: Any) -> list[Machine]:
    """Return the machines of the connected cluster, and those that its autoscaler may add."""
    found = machines(ray)
    config = ray._private.state.state.get_cluster_config()
    for group in config.node_group_configs if config else ():
        kind = _machine(dict(group.resources))
        most = _UNLIMITED if group.max_count < 0 else group.max_count
        found += [kind] * (most - found.count(kind))
    return found


def _machine(resources: Mapping[str, float]) -> Machine:
    return Machine(float(resources.get("CPU", 0)), float(resources.get("GPU", 0)))


def places(there: Sequence[Machine], cpus: float, gpus: float = 0.0) -> int:
    """Return how many workers that take so much find a place."""
    return sum(machine.places(cpus, gpus) for machine in there)


def cpus_each(there: Sequence[Machine], workers: int, gpus: float = 0.0) -> int:
    """Return the most CPUs that each worker can have, 0 if some would find no place.

    Every machine that can hold a worker at all can hold one of this size: when a larger machine is lost, the others
    go on.

    Args:
        workers: that must find a place at the same time.
    """
    smallest = min((int(machine.cpus) for machine in there if machine.places(1, gpus)), default=0)
    return next((cpus for cpus in range(smallest, 0, -1) if places(there, cpus, gpus) >= workers), 0)


def gpus_each(there: Sequence[Machine], workers: int) -> float:
    """Return each worker's share of the GPUs: one, or a part that Ray can count; 0 if there is none."""
    gpus = sum(int(machine.gpus) for machine in there if machine.cpus >= 1)
    return 0.0 if not gpus else int(10_000 / max(1, -(-workers // gpus))) / 10_000


def in_words(cpus: float, gpus: float = 0.0) -> str:
    """Return an amount in words: ``2 CPUs and 1 GPU``."""
    parts = [(cpus, "CPU")] + ([(gpus, "GPU")] if gpus else [])
    return " and ".join(f"{count:g} {kind}{'' if count == 1 else 's'}" for count, kind in parts)


def listed_machines(there: Sequence[Machine]) -> str:
    """Return in words what machines there are: ``2 machines of 2 CPUs, 1 of 8 CPUs and 1 GPU``."""
    if not there:
        return "no machine"
    (kind, count), *others = Counter(there).most_common()
    first = f"{count} machine{'' if count == 1 else 's'} of {in_words(*kind)}"
    return ", ".join([first, *(f"{count} of {in_words(*kind)}" for kind, count in others)])


def free_in_words(ray: Any) -> str:
    """Return in words what the cluster has and how much of it nobody holds."""
    free = ray.available_resources()
    return (
        f"Ray has {listed_machines(machines(ray))}; {in_words(free.get('CPU', 0), free.get('GPU', 0))} in all are free"
    )
