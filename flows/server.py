"""The Prefect server of a run: the configured one, or a temporary, quiet, private one."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
import httpx
from prefect import Flow
from prefect.client.schemas import State
from prefect.exceptions import ParameterTypeError
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect.settings.models.server.services import ServerServicesSettings

from cse.errors import CseError
from cse.process import handling, only_one

_DATABASE = "cse-runs.db"
# the services a single run needs: without them task runs and events would be lost
_NEEDED = {"event_persister", "task_run_recorder"}


def run_here(work: Flow[Any, Any], **parameters: Any) -> None:
    """Run a flow in this process, recorded on the configured server or else on a temporary one."""
    served = PREFECT_API_URL.value()
    if served:
        _check(served)
    else:
        click.echo("no Prefect server configured: using a temporary one", err=True)
    # unwinding stops the stage and the temporary server; Prefect re-raises the signal after the flow
    leaving = handling(lambda number: sys.exit(128 + number), signal.SIGTERM)
    with leaving, nullcontext() if served else quiet_server():
        try:
            ended: Any = work(**parameters, return_state=True)
        except ParameterTypeError as error:
            raise CseError(str(error)) from None
        except httpx.TransportError:
            if served:
                raise
            raise CseError("stopped with its temporary Prefect server; run the same command again to resume") from None
    state: State[Any] = ended
    if not state.is_completed():
        raise CseError(state.message or state.name or "the run failed")
    click.echo(state.message)


def _check(url: str) -> None:
    """Refuse to continue if the server does not answer, with one line instead of a traceback."""
    try:
        httpx.get(f"{url.rstrip('/')}/health", timeout=10).raise_for_status()
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise CseError(
            f"{url}: the Prefect server does not answer ({reason}); start it with `prefect server start`, or unset "
            "PREFECT_API_URL: `cse flow` needs none"
        ) from None


@contextmanager
def quiet_server() -> Iterator[None]:
    """Let flows in the block use a temporary server with a database of its own.

    The database is kept between runs, because creating it takes seconds; a second run at the same time creates another.
    Services that wait for other runs are off: they would only compete for the database.
    """
    home = Path(PREFECT_HOME.value())
    with ExitStack() as stack:
        try:
            stack.enter_context(only_one(home / f"{_DATABASE}.lock", "in use"))
        except CseError:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cse-prefect-")))
        # no setting: of other libraries the server logs what it breaks off when it is stopped
        os.environ.setdefault("PREFECT_LOGGING_ROOT_LEVEL", "CRITICAL")
        with temporary_settings(_settings(home / _DATABASE)):
            yield


def _settings(database: Path) -> dict[str, object]:
    services = [name for name in ServerServicesSettings.model_fields if name not in _NEEDED]
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": False,
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_CLIENT_MAX_RETRIES": 1,  # Ctrl-C ends the server too; five retries of every call would take minutes
        **{f"PREFECT_SERVER_SERVICES_{name.upper()}_ENABLED": False for name in services},
    }
