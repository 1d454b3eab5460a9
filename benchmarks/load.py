"""Load generator for a server of embeddings: N clients, each sends its next request when its last answer is complete.

    python -m benchmarks.load http://127.0.0.1:8080                               # 64 clients, 20 seconds
    python -m benchmarks.load http://127.0.0.1:7997 --kind infinity --clients 16
    python -m benchmarks.load http://127.0.0.1:8080 --texts-per-request 2048 --clients 1 --requests 3

Works with every server that has OpenAI's route. Texts are distinct and of 1 to 100 words (benchmarks/mixed_texts.py),
or your own. Every answer must hold as many vectors as the request has texts; a sample is decoded after the run and
compared with what the server answers to the same texts one request at a time, so that a server which mixes answers up
under load is found. Exits with 1 if an answer was an error or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import http.client
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.asking import MODELS, ROUTES, Asking, LoadError, new_loop, split_url
from benchmarks.harness import parser_of
from benchmarks.mixed_texts import mixed_texts

CHECK_EVERY = 50  # one text in so many has a reference vector
OWN_REFERENCES = 20
_KEPT_BYTES = 64_000_000  # of answers to check after the run
_PAUSE_SECONDS = 0.05  # after an error, so that a server in trouble is not flooded
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass(frozen=True)
class LoadPlan:
    """What to send where; the answers of the requests at ``checked`` are kept."""

    host: str
    port: int
    requests: list[bytes]
    texts_per_request: int = 1
    checked: frozenset[int] = frozenset()


@dataclass
class LoadResult:
    """What came back in the measured window."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process
    latencies: list[float] = field(default_factory=list)  # seconds, of correct answers
    errors: Counter[str] = field(default_factory=Counter)  # by status, or connection, timeout
    miscounted: int = 0  # answers with another number of vectors than texts
    kept: list[tuple[int, bytes]] = field(default_factory=list)  # request and body, to check
    kept_bytes: int = 0

    @property
    def answers(self) -> int:
        """How many requests came to an end, errors included."""
        return len(self.latencies) + self.miscounted + self.errors.total()


class Load:
    """One run: ``clients`` connections, a warm-up, a measured window."""

    def __init__(self, plan: LoadPlan, clients: int, timeout: float) -> None:
        self.plan, self.clients, self.timeout = plan, clients, timeout
        self.measured = LoadResult()
        self.measuring = self.stopping = False
        self.enough = asyncio.Event()
        self.wanted: int | None = None
        # the warm-up starts in the middle: the measured texts are new to the server
        self._next = len(plan.requests) // 2

    async def run(self, warm_up: float, seconds: float, requests: int | None = None) -> LoadResult:
        """Return what was measured after the warm-up: for some seconds, or until so many answers came.

        A window without an answer says nothing: it lasts until there are as many answers as clients.
        """
        clients = [asyncio.create_task(self._client()) for _ in range(self.clients)]
        await asyncio.sleep(warm_up)
        self.wanted = requests
        self.measured = found = LoadResult()
        self.measuring, self._next = True, 0
        cpu, begin = time.process_time(), time.perf_counter()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.enough.wait(), None if requests else seconds)
        if found.answers < self.clients and not requests:
            self.wanted = self.clients
            await self.enough.wait()
        found.seconds, found.cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
        self.measuring, self.stopping = False, True
        await asyncio.wait(clients, timeout=self.timeout)  # leave the server idle: the next run starts from there
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return found

    async def _client(self) -> None:
        """Send a request after the other, over one connection while it lasts."""
        while not self.stopping:
            try:
                host, port = self.plan.host, self.plan.port
                transport, answers = await asyncio.get_running_loop().create_connection(_Answers, host, port)
            except OSError:
                self._count("connection")
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            try:
                while not self.stopping and await self._ask(answers):
                    pass
            finally:
                transport.abort()

    async def _ask(self, answers: _Answers) -> bool:
        """Send the next request and count its answer; return whether the connection may be used again."""
        number, self._next = self._next, (self._next + 1) % len(self.plan.requests)
        begin = time.perf_counter()
        try:
            head, body = await answers.ask(self.plan.requests[number], self.timeout)
        except TimeoutError:
            self._count("timeout")
            return False
        except OSError:
            self._count("connection")
            await asyncio.sleep(_PAUSE_SECONDS)
            return False
        seconds, status, found = time.perf_counter() - begin, int(head[9:12]), self.measured
        if status != 200:
            self._count(str(status))
            await asyncio.sleep(_PAUSE_SECONDS)
        elif count_vectors(body) != self.plan.texts_per_request:
            self._count("", miscounted=1)
        elif self.measuring:
            found.latencies.append(seconds)
            if number in self.plan.checked and found.kept_bytes < _KEPT_BYTES:
                found.kept.append((number, body))
                found.kept_bytes += len(body)
            self._count("")
        return not _CLOSE.search(head)

    def _count(self, error: str, miscounted: int = 0) -> None:
        """Count an answer, or why there is none, while it is measured."""
        if self.measuring:
            self.measured.miscounted += miscounted
            if error:
                self.measured.errors[error] += 1
            if self.wanted is not None and self.measured.answers >= self.wanted:
                self.measuring = False
                self.enough.set()


class _Answers(asyncio.Protocol):
    """A connection that waits for one answer; callbacks, not streams, so that a request costs half as much."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._head = b""
        self._length: int | None = None  # of the body; None: chunked
        self._answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of uvloop, or asyncio
        self._transport = transport

    async def ask(self, request: bytes, timeout: float) -> tuple[bytes, bytes]:
        """Return head and body of an answer."""
        self._received.clear()
        self._head, self._answer = b"", asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            raise ConnectionResetError
        late = asyncio.get_running_loop().call_later(timeout, self._fail, TimeoutError())
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
            length = _LENGTH.search(self._head)
            self._length = int(length[1]) if length else None if _CHUNKED.search(self._head) else 0
        body = len(received) - len(self._head)
        if self._length is None and received.endswith(b"0\r\n\r\n"):
            self._answer.set_result((self._head, joined_chunks(bytes(received[-body:]))))
        elif self._length is not None and body >= self._length:
            self._answer.set_result((self._head, bytes(received[len(self._head) :])))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionResetError())

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


def joined_chunks(body: bytes) -> bytes:
    """Return the content of a chunked body."""
    found, at = [], 0
    while (end := body.find(b"\r\n", at)) >= 0 and (size := int(body[at:end].split(b";")[0], 16)):
        found.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(found)


def count_vectors(body: bytes) -> int:
    """Return the number of vectors in an answer without decoding it: every vector comes with its index."""
    return body.count(b'"index"')


def read_vectors(body: bytes) -> np.ndarray:
    """Decode the vectors of an answer, in the order of the texts."""
    items = sorted(json.loads(body)["data"], key=lambda item: item["index"])
    rows = [item["embedding"] for item in items]
    if isinstance(rows[0], str):
        rows = [np.frombuffer(base64.b64decode(row), dtype="<f4") for row in rows]
    return np.array(rows, dtype=np.float64)


def build_requests(
    texts: Sequence[str], *, host: str, port: int, route: str, model: str, texts_per_request: int = 1, key: str = ""
) -> list[bytes]:
    """Return whole HTTP requests, each with the next texts; a rest that does not fill a request is left out."""
    found = []
    for begin in range(0, len(texts) - texts_per_request + 1, texts_per_request):
        part = list(texts[begin : begin + texts_per_request])
        given = {"model": model, "input": part[0] if texts_per_request == 1 else part}
        body = json.dumps(given, ensure_ascii=False).encode()
        head = f"POST {route} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {key}\r\n" if key else ""
        found.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    if not found:
        raise LoadError(f"{len(texts)} texts do not fill a request of {texts_per_request}")
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is not below ``percent`` % of the values; NaN without values."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else math.nan


def compare(
    kept: Sequence[tuple[int, bytes]], references: dict[int, np.ndarray], texts_per_request: int, tolerance: float
) -> dict[str, Any]:
    """Decode kept answers and compare them with the references of their texts, which are given by position."""
    wrong, compared, largest = 0, 0, 0.0
    for number, body in kept:
        vectors = read_vectors(body)
        first = number * texts_per_request
        pairs = [(vectors[at - first], references[at]) for at in range(first, first + len(vectors)) if at in references]
        differences = [np.abs(one - other).max() if one.shape == other.shape else math.inf for one, other in pairs]
        compared += len(differences)
        wrong += sum(not difference <= tolerance for difference in differences)  # NaN is wrong too
        largest = max([largest, *differences])
    return {"compared": compared, "wrong": wrong, "largest_difference": float(largest)}


def summary(found: LoadResult, clients: int, texts_per_request: int) -> dict[str, Any]:
    """Return the figures of a run."""
    requests = len(found.latencies)
    return {
        "clients": clients,
        "texts_per_request": texts_per_request,
        "seconds": found.seconds,
        "requests": requests,
        "requests_per_s": requests / found.seconds,
        "texts_per_s": requests * texts_per_request / found.seconds,
        "p50_ms": 1e3 * percentile(found.latencies, 50),
        "p99_ms": 1e3 * percentile(found.latencies, 99),
        "errors": dict(found.errors),
        "miscounted": found.miscounted,
        "generator_cpu_ms_per_request": 1e3 * found.cpu_seconds / max(found.answers, 1),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("url", metavar="URL", help="of the server, such as http://127.0.0.1:8080")
    parser.add_argument(
        "--kind", choices=ROUTES, default="openai", help="openai: /v1/embeddings; infinity: /embeddings"
    )
    parser.add_argument("--model", help="default: the first one that the server lists")
    parser.add_argument("--key", default="", help="sent as `Authorization: Bearer KEY`")
    parser.add_argument("--clients", type=int, default=64, help="at once")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured")
    parser.add_argument("--requests", type=int, help="measure so many answers instead of so many seconds")
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="SECONDS", help="not measured")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of a request")
    parser.add_argument("--texts-per-request", type=int, default=1, help="in one body")
    parser.add_argument("--texts", type=Path, help="your texts, one per line; default: 20,000 generated ones")
    parser.add_argument(
        "--references", type=Path, help=f".npy with the vectors of texts 0, {CHECK_EVERY}, {2 * CHECK_EVERY}, ..."
    )
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of each number of a vector")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(arguments)
    for name in ("clients", "texts_per_request", "requests"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: give 1 or more")
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the load that the command line describes and return its figures."""
    host, port, path = split_url(options.url)
    route = path + ROUTES[options.kind]
    asking = Asking(host, port, options.key)
    try:
        model = options.model or json.loads(asking.ask(path + MODELS[options.kind]))["data"][0]["id"]
        texts = mixed_texts()
        if options.texts is not None:
            texts = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
        if options.references:
            rows = np.load(options.references)
            references = {CHECK_EVERY * at: row for at, row in enumerate(rows)}
        else:
            places = range(0, min(len(texts), OWN_REFERENCES * CHECK_EVERY), CHECK_EVERY)
            own = [asking.ask(route, {"model": model, "input": texts[at]}) for at in places]  # one at a time
            references = {at: read_vectors(body)[0] for at, body in zip(places, own, strict=True)}
    except (OSError, http.client.HTTPException) as error:
        raise LoadError(f"{options.url}: no answer ({error}); is the server up?") from None
    k = options.texts_per_request
    where = {"host": host, "port": port, "route": route, "key": options.key}
    requests = build_requests(texts, **where, model=model, texts_per_request=k)
    plan = LoadPlan(host, port, requests, k, frozenset(at // k for at in references))

    async def run() -> LoadResult:
        load = Load(plan, options.clients, options.timeout)
        return await load.run(options.warm_up, options.seconds, options.requests)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        found = runner.run(run())
    return summary(found, options.clients, k) | compare(found.kept, references, k, options.tolerance)


def show(figures: dict[str, Any]) -> str:
    """Return the figures of a run in two lines."""
    errors = ", ".join(f"{count} x {name}" for name, count in figures["errors"].items()) or "no errors"
    rates = f"{figures['requests_per_s']:.1f} requests/s, {figures['texts_per_s']:.1f} texts/s"
    times = f"p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms"
    checked = f"{figures['compared']} vectors compared, {figures['wrong']} wrong"
    own = f"this program took {figures['generator_cpu_ms_per_request']:.3f} ms a request"
    return (
        f"{figures['clients']} clients: {rates}, {times}\n"
        f"  {errors}; {figures['miscounted']} answers with another number of vectors than texts; "
        f"{checked} (largest difference {figures['largest_difference']:.1e}); {own}"
    )


def faulty(figures: dict[str, Any]) -> bool:
    """Return whether an answer was an error or wrong, or none came or none could be compared."""
    none = figures["requests"] == 0
    return bool(none or figures["errors"] or figures["miscounted"] or figures["wrong"])


def main() -> int:
    """Print the figures; ``--json`` also writes them."""
    options = parse()
    try:
        figures = measure(options)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(show(figures))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return int(faulty(figures))


if __name__ == "__main__":
    sys.exit(main())
