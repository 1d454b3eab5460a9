"""Load on a server of embeddings: N clients, each sends its next request when its last answer is complete.

A request holds one text, and every answer must hold one vector; a sample is decoded after the run and compared with
references, so that a server which mixes answers up under load is found.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

CHECK_EVERY = 50  # one text in so many has a reference vector
TIMEOUT_SECONDS = 120.0  # of a request
_PAUSE_SECONDS = 0.05  # after an error, so that a server in trouble is not flooded
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass
class LoadResult:
    """What came back in the measured window."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # seconds, of correct answers
    errors: Counter[str] = field(default_factory=Counter)  # by status, or connection, timeout
    miscounted: int = 0  # answers with another number of vectors than one
    kept: list[tuple[int, bytes]] = field(default_factory=list)  # number of the text and body, to check


class Load:
    """One run: ``clients`` connections, a warm-up, a measured window; answers to each 50th request are kept."""

    def __init__(self, port: int, requests: Sequence[bytes], clients: int) -> None:
        self.port, self.requests, self.clients = port, requests, clients
        self.measured = LoadResult()
        self.measuring = self.stopping = False
        # the warm-up starts in the middle: the measured texts are new to the server
        self._next = len(requests) // 2

    async def run(self, warm_up: float, seconds: float) -> LoadResult:
        """Return what was measured after the warm-up."""
        clients = [asyncio.create_task(self._client()) for _ in range(self.clients)]
        await asyncio.sleep(warm_up)
        self.measuring, self._next = True, 0
        begin = time.perf_counter()
        await asyncio.sleep(seconds)
        self.measured.seconds = time.perf_counter() - begin
        self.measuring, self.stopping = False, True
        await asyncio.wait(clients, timeout=TIMEOUT_SECONDS)  # leave the server idle: the next run starts from there
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return self.measured

    async def _client(self) -> None:
        """Send a request after the other, over one connection while it lasts."""
        while not self.stopping:
            try:
                connecting = asyncio.get_running_loop().create_connection(_Answers, "127.0.0.1", self.port)
                transport, answers = await connecting
            except OSError:
                await self._failed("connection")
                continue
            try:
                while not self.stopping and await self._ask(answers):
                    pass
            finally:
                transport.abort()

    async def _ask(self, answers: _Answers) -> bool:
        """Send the next request and count its answer; return whether the connection may be used again."""
        number, self._next = self._next, (self._next + 1) % len(self.requests)
        begin = time.perf_counter()
        try:
            head, body = await answers.ask(self.requests[number])
        except OSError as error:
            await self._failed("timeout" if isinstance(error, TimeoutError) else "connection")
            return False
        seconds, status = time.perf_counter() - begin, int(head[9:12])
        if status != 200:
            await self._failed(str(status))
        elif self.measuring and body.count(b'"index"') != 1:  # not decoded here: every vector comes with its index
            self.measured.miscounted += 1
        elif self.measuring:
            self.measured.latencies.append(seconds)
            if number % CHECK_EVERY == 0:
                self.measured.kept.append((number, body))
        return not _CLOSE.search(head)

    async def _failed(self, error: str) -> None:
        if self.measuring:
            self.measured.errors[error] += 1
        await asyncio.sleep(_PAUSE_SECONDS)


class _Answers(asyncio.Protocol):
    """A connection that waits for one answer; callbacks, not streams, so that a request costs half as much."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._head = b""
        self._length = 0  # of the body
        self._answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of uvloop
        self._transport = transport

    async def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Return head and body of an answer."""
        self._received.clear()
        self._head, self._answer = b"", asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            raise ConnectionResetError
        late = asyncio.get_running_loop().call_later(TIMEOUT_SECONDS, self._fail, TimeoutError())
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            late.cancel()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self._head:
            if (end := received.find(b"\r\n\r\n") + 4) < 4:
                return
            self._head = bytes(received[:end])
            if not (length := _LENGTH.search(self._head)):
                self._fail(ConnectionError())  # in chunks: no server here answers one text so
                return
            self._length = int(length[1])
        if len(received) - len(self._head) >= self._length and not self._answer.done():
            self._answer.set_result((self._head, bytes(received[len(self._head) :])))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionResetError())

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


def build_requests(texts: Sequence[str], *, port: int, route: str, model: str) -> list[bytes]:
    """Return whole HTTP requests, one for each text."""
    found = []
    for text in texts:
        body = json.dumps({"model": model, "input": text}, ensure_ascii=False).encode()
        head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        found.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return found


def compare(kept: Sequence[tuple[int, bytes]], references: np.ndarray, tolerance: float) -> dict[str, Any]:
    """Decode kept answers and compare them with references, vectors of the texts 0, 50, 100 and so on."""
    differences = []
    for number, body in kept:
        if number // CHECK_EVERY < len(references):
            one, other = np.array(json.loads(body)["data"][0]["embedding"]), references[number // CHECK_EVERY]
            differences.append(float(np.abs(one - other).max()) if one.shape == other.shape else math.inf)
    wrong = sum(not difference <= tolerance for difference in differences)  # NaN is wrong too
    return {"compared": len(differences), "wrong": wrong, "largest_difference": max(differences, default=0.0)}


def measure(
    port: int, requests: Sequence[bytes], references: np.ndarray, tolerance: float,
    *, clients: int, warm_up: float, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Send requests to a server of this machine and return the figures."""
    load = Load(port, requests, clients)
    gc.collect()
    gc.freeze()  # what other parts of this process hold is not walked through while it is measured
    try:
        found = uvloop.run(load.run(warm_up, seconds))
    finally:
        gc.unfreeze()
    half, most = 1e3 * np.percentile(found.latencies or [math.nan], [50, 99], method="inverted_cdf")
    return {
        "clients": clients,
        "seconds": found.seconds,
        "requests": len(found.latencies),
        "requests_per_s": len(found.latencies) / found.seconds,
        "p50_ms": float(half),
        "p99_ms": float(most),
        "errors": dict(found.errors),
        "miscounted": found.miscounted,
        **compare(found.kept, references, tolerance),
    }


def faulty(figures: dict[str, Any]) -> bool:
    """Return whether an answer was an error or wrong, or none could be compared."""
    return bool(not figures["compared"] or figures["errors"] or figures["miscounted"] or figures["wrong"])
