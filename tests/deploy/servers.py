"""Start ``cse serve`` on a free loopback port, and stop it."""

import asyncio
import functools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from deploy.server.metrics import Metrics
from tests.waiting import wait_for

# httpx.get makes a client for each request: 40 ms of reading certificates. Connections are its own as there, not kept.
CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0, max_connections=None))


class Server(NamedTuple):
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def lines(self) -> list[dict[str, Any]]:
        return lines_of(self.log)

    def post(self, route: str, body: Any, **options: Any) -> httpx.Response:
        return CLIENT.post(self.url + route, json=body, **options)

    def get(self, route: str, **options: Any) -> httpx.Response:
        return CLIENT.get(self.url + route, **options)

    def metric(self, series: str) -> float:
        text = self.get("/metrics").text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(series))


@contextmanager
def serving(model: object, *options: object, log: Path, cwd: Path | None = None) -> Iterator[Server]:
    command = [sys.executable, "-m", "cse", "serve", str(model), "--port", "0", *map(str, options)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream, cwd=cwd)
    try:
        urls: list[str] = []

        def listens() -> bool:
            assert process.poll() is None, log.read_text()
            urls[:] = [line["url"] for line in lines_of(log) if line["event"] == "listening"]
            return bool(urls)

        wait_for(listens)
        yield Server(urls[0], process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def lines_of(log: Path) -> list[dict[str, Any]]:
    """What was logged so far, all of it JSON, without a line that is being written."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def client_of(app: Any, *, key: str | None = None, **transport: Any) -> httpx.AsyncClient:
    """A client that asks an application without a server."""
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, **transport), base_url="http://127.0.0.1", headers=headers
    )


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test in an event loop of its own."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


def asked(app: Any, *requests: tuple[str, str, Any], key: str | None = None, **transport: Any) -> list[httpx.Response]:
    """The answers of an application to requests (method, route, body), one after another; bytes are sent as JSON."""

    async def ask() -> list[httpx.Response]:
        async with client_of(app, key=key, **transport) as client:
            return [
                await client.request(method, route, **({"content" if isinstance(body, bytes) else "json": body}))
                for method, route, body in requests
            ]

    return asyncio.run(ask())


def metric_names() -> set[str]:
    """The name of every series, as Prometheus stores it."""
    ends = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
    return {one.name + end for one in Metrics().registry.collect() for end in ends.get(one.type, ("",))}
