"""Servers as processes: start one on a free port, wait for its first answer, and end it whatever happens."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

import psutil

from benchmarks.harness import environment
from cse.errors import CseError

START_SECONDS, END_SECONDS = 180.0, 10.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "true", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Setting:
    """One way to run a server: program and arguments, in which ``{port}`` is replaced, and variables."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    tolerance: float | None = None


@dataclass(frozen=True)
class ServerUnderTest:
    """A server to measure, with the settings among which the fastest is chosen.

    Attributes:
        settings: the one to take without a trial first.
        route: of embeddings.
        tolerance: largest difference of a number of its vectors from the reference.
    """

    name: str
    settings: tuple[Setting, ...]
    route: str = "/v1/embeddings"
    tolerance: float = 1e-3
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Running:
    """A server that answers, the model that it lists, and the seconds from its start to its first vector."""

    port: int
    model: str
    process: subprocess.Popen[bytes]
    cold_start_s: float

    def memory_megabytes(self) -> float:
        """Return the resident memory of the server and its children."""
        own = psutil.Process(self.process.pid)
        total = 0
        for process in [own, *own.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total / 1e6


@contextmanager
def running(contestant: ServerUnderTest, chosen: Setting) -> Iterator[Running]:
    """Yield a server that has given its first answer, and end it.

    Raises:
        CseError: it cannot be started, ends before its first answer, or gives none in time; with its last lines.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [part.format(port=port) for part in chosen.command]
    variables = environment(**_OFFLINE | chosen.environment)
    with tempfile.TemporaryFile() as log:
        begin = time.perf_counter()
        try:
            process = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise CseError(f"{contestant.name}: cannot start {command[0]}: {error.strerror}") from None
        try:
            model = _wait(contestant, process, port, begin + START_SECONDS, log)
            yield Running(port, model, process, time.perf_counter() - begin)
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server and its children: kindly, then by force."""
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, END_SECONDS)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def _wait(
    contestant: ServerUnderTest, process: subprocess.Popen[bytes], port: int, until: float, log: IO[bytes]
) -> str:
    """Return the server's model at the first vector."""
    route, reason = contestant.route, ""
    while time.perf_counter() < until:
        if process.poll() is not None:
            raise CseError(f"{contestant.name}: ended with {process.returncode} before its first answer:\n{_tail(log)}")
        left = max(until - time.perf_counter(), 1.0)
        try:
            model = str(json.loads(_ask(port, route.replace("embeddings", "models"), left))["data"][0]["id"])
            _ask(port, route, left, {"model": model, "input": "first"})
            return model
        except (OSError, http.client.HTTPException) as error:
            reason = str(error)
            time.sleep(0.02)
    raise CseError(f"{contestant.name}: gave no vector in time ({reason}):\n{_tail(log)}")


def _ask(port: int, route: str, seconds: float, given: dict[str, str] | None = None) -> bytes:
    """Return the body of an answer; ``given`` is posted as JSON."""
    body = None if given is None else json.dumps(given).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{route}", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=seconds) as answer:
        return bytes(answer.read())


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-15:])
