"""Prefect's temporary server, for a flow that runs without a server of its own: quiet, alone, private."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect.settings.models.server.services import ServerServicesSettings

_DATABASE = "cse-runs.db"
# those that a single run needs: without them task runs and events would not be kept
_NEEDED = {"event_persister", "task_run_recorder"}


def has_server() -> bool:
    """Whether the environment or the profile names a server."""
    return bool(PREFECT_API_URL.value())


@contextmanager
def quiet_server() -> Iterator[None]:
    """Let flows inside use a temporary server with a database that no other process writes.

    The database is kept from run to run, as its first making takes seconds; a second run at the same time makes one of
    its own. Services that wait for other people's runs are off: they would only compete for the database.
    """
    home = Path(PREFECT_HOME.value())
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home / f"{_DATABASE}.lock")
    with tempfile.TemporaryDirectory(prefix="cse-prefect-") as folder:
        try:
            lock.acquire(blocking=False)
            database = home / _DATABASE
        except Timeout:
            database = Path(folder) / _DATABASE
        try:
            with temporary_settings(_settings(database)):
                yield
        finally:
            lock.release()


def _settings(database: Path) -> dict[str, object]:
    services = [name for name in ServerServicesSettings.model_fields if name not in _NEEDED]
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": False,
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        **{f"PREFECT_SERVER_SERVICES_{name.upper()}_ENABLED": False for name in services},
    }


def leave_in_order() -> None:
    """Turn SIGTERM into an exit that unwinds: that is what ends the stage and the temporary server."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
