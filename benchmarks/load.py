"""Load on a server of embeddings: N clients, each sends its next request when its last answer is complete.

A request holds one text, and every answer must hold one vector; a sample is decoded after the run and compared with
references, so that a server which mixes answers up under load is found.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import uvloop

CHECK_EVERY = 50  # one text in so many has a reference vector
TIMEOUT_SECONDS = 120.0  # of a request
_PAUSE_SECONDS = 0.05  # after an error, so that a server in trouble is not flooded


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

    def __init__(self, url: str, requests: Sequence[bytes], clients: int) -> None:
        self.url, self.requests, self.clients = url, requests, clients
        self.measured = LoadResult()
        self.measuring = self.stopping = False
        # the warm-up starts in the middle: the measured texts are new to the server
        self._next = len(requests) // 2

    async def run(self, warm_up: float, seconds: float) -> LoadResult:
        """Return what was measured after the warm-up."""
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.clients),
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        )
        async with session, asyncio.TaskGroup() as clients:  # at the end the server is idle: the next run starts there
            for _ in range(self.clients):
                clients.create_task(self._client(session))
            await asyncio.sleep(warm_up)
            self.measuring, self._next = True, 0
            begin = time.perf_counter()
            await asyncio.sleep(seconds)
            self.measured.seconds = time.perf_counter() - begin
            self.measuring, self.stopping = False, True
        return self.measured

    async def _client(self, session: aiohttp.ClientSession) -> None:
        """Send a request after the other and count the answers."""
        while not self.stopping:
            number, self._next = self._next, (self._next + 1) % len(self.requests)
            begin, error = time.perf_counter(), ""
            try:
                async with session.post(self.url, data=self.requests[number]) as answer:
                    body, status = await answer.read(), answer.status
                    error = "" if status == 200 else str(status)
            except TimeoutError:
                error = "timeout"
            except aiohttp.ClientError:
                error = "connection"
            if self.measuring and error:
                self.measured.errors[error] += 1
            elif self.measuring and body.count(b'"index"') != 1:  # not decoded here: every vector comes with its index
                self.measured.miscounted += 1
            elif self.measuring:
                self.measured.latencies.append(time.perf_counter() - begin)
                if number % CHECK_EVERY == 0:
                    self.measured.kept.append((number, body))
            if error:
                await asyncio.sleep(_PAUSE_SECONDS)


def build_requests(texts: Sequence[str], model: str) -> list[bytes]:
    """Return bodies of requests, one for each text."""
    return [json.dumps({"model": model, "input": text}, ensure_ascii=False).encode() for text in texts]


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
    url: str, requests: Sequence[bytes], references: np.ndarray, tolerance: float,
    *, clients: int, warm_up: float, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Send requests to a server's route and return the figures."""
    load = Load(url, requests, clients)
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
