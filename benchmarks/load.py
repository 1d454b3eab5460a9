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

CHECK_EVERY = 50  # one text in so many has a reference vector
_KEPT_BYTES = 64_000_000  # of answers to check after the run
_LOOK_SECONDS = 0.25  # between looks for requests that take too long
_PAUSE_SECONDS = 0.05  # after an error, so that a server in trouble is not flooded
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass(frozen=True)
class LoadPlan:
    """What to send where.

    Attributes:
        host: name or address of the server.
        texts_per_request: vectors that each answer must hold.
        checked: positions of the requests whose answers are kept.
    """

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
        self.enough, self.idle = asyncio.Event(), asyncio.Event()
        self.wanted: int | None = None
        # the warm-up starts in the middle: the measured texts are new to the server
        self._next, self._end = len(plan.requests) // 2, len(plan.requests)
        self._open: set[_Client] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, warm_up: float, seconds: float, requests: int | None = None) -> LoadResult:
        """Return what was measured after the warm-up: for some seconds, or until so many answers came.

        A window without an answer says nothing: it lasts until there are as many answers as clients.

        Raises:
            LoadError: no connection at the start.
        """
        for _ in range(self.clients):
            await self._connect()
        looking = asyncio.create_task(self._look())
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
        with contextlib.suppress(TimeoutError):  # leave the server idle: the next run starts from there
            await asyncio.wait_for(self._all_idle(), self.timeout)
        looking.cancel()
        for client in [*self._open]:
            client.close()
        return found

    def next_request(self) -> int:
        """Return the position of the next request."""
        number, self._next = self._next, (self._next + 1) % self._end
        return number

    def answered(self, number: int, status: int, body: bytes, seconds: float) -> None:
        """Count a complete answer."""
        if not self.measuring:
            return
        found = self.measured
        if status != 200:
            found.errors[str(status)] += 1
        elif count_vectors(body) != self.plan.texts_per_request:
            found.miscounted += 1
        else:
            found.latencies.append(seconds)
            if number in self.plan.checked and found.kept_bytes < _KEPT_BYTES:
                found.kept.append((number, body))
                found.kept_bytes += len(body)
        self._count_to_the_end()

    def failed(self, reason: str) -> None:
        """Count a request without an answer."""
        if self.measuring:
            self.measured.errors[reason] += 1
            self._count_to_the_end()

    def opened(self, client: _Client) -> None:
        """Remember a connection."""
        self._open.add(client)

    def closed(self, client: _Client) -> None:
        """Forget a connection, and open another unless the run is at its end."""
        self._open.discard(client)
        if not self.stopping:
            task = asyncio.create_task(self._connect_again())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _count_to_the_end(self) -> None:
        if self.wanted is not None and self.measured.answers >= self.wanted:
            self.measuring = False
            self.enough.set()

    async def _connect(self) -> None:
        loop, plan = asyncio.get_running_loop(), self.plan
        try:
            await loop.create_connection(lambda: _Client(self), plan.host, plan.port)
        except OSError as error:
            raise LoadError(f"no connection to {plan.host}:{plan.port}: {error}; is the server up?") from None

    async def _connect_again(self) -> None:
        while not self.stopping:
            await asyncio.sleep(_PAUSE_SECONDS)
            try:
                await self._connect()
            except LoadError:
                self.failed("connection")
            else:
                return

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self.timeout / 4))
            now = time.perf_counter()
            for client in [*self._open]:
                client.give_up_if_late(now - self.timeout)

    async def _all_idle(self) -> None:
        while any(client.waiting for client in self._open):
            await asyncio.sleep(0.01)


class _Client(asyncio.Protocol):
    """One connection; callbacks only, without tasks or futures, so that a request costs little."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.waiting = False
        self._transport: asyncio.Transport
        self._number, self._begin = 0, 0.0
        self._received = bytearray()
        self._start = -1  # of the body; -1: the head is not complete
        self._length: int | None = None  # of the body; None: chunked

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = transport  # type: ignore[assignment]
        self.load.opened(self)
        self.send()

    def send(self) -> None:
        """Send the next request."""
        if self.load.stopping or self._transport.is_closing():
            return
        self._received.clear()
        self._start = -1
        self._number = self.load.next_request()
        self.waiting = True
        self._begin = time.perf_counter()
        self._transport.write(self.load.plan.requests[self._number])

    def data_received(self, data: bytes) -> None:
        """Collect an answer until it is complete."""
        received = self._received
        received += data
        if self._start < 0:
            self._start = received.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in received else -1
            if self._start < 0:
                return
            head = bytes(received[: self._start])
            length = _LENGTH.search(head)
            self._length = int(length[1]) if length else None if _CHUNKED.search(head) else 0
        if self._length is None:
            if received.endswith(b"\r\n0\r\n\r\n") or received[self._start :] == b"0\r\n\r\n":
                self._complete(joined_chunks(bytes(received[self._start :])))
        elif len(received) >= self._start + self._length:
            self._complete(bytes(received[self._start :]))

    def _complete(self, body: bytes) -> None:
        seconds = time.perf_counter() - self._begin
        status = int(self._received[9:12])
        self.waiting = False
        self.load.answered(self._number, status, body, seconds)
        if _CLOSE.search(self._received, 0, self._start):
            self._transport.close()
        elif status == 200:
            self.send()
        else:
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self.send)

    def connection_lost(self, error: Exception | None) -> None:
        """Count the request that had no answer yet."""
        if self.waiting:
            self.waiting = False
            self.load.failed("connection")
        self.load.closed(self)

    def give_up_if_late(self, latest: float) -> None:
        """Count a request that was sent before ``latest`` as timed out, and close the connection."""
        if self.waiting and self._begin < latest:
            self.waiting = False
            self.load.failed("timeout")
            self._transport.abort()

    def close(self) -> None:
        """Close the connection without counting anything."""
        self.waiting = False
        self._transport.abort()


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


def own_references(asking: Asking, route: str, model: str, texts: Sequence[str], count: int) -> dict[int, np.ndarray]:
    """Return the server's own vectors of some texts, asked for one at a time."""
    places = range(0, min(len(texts), count * CHECK_EVERY), CHECK_EVERY)
    return {at: read_vectors(asking.ask(route, {"model": model, "input": texts[at]}))[0] for at in places}


def run_load(
    plan: LoadPlan, clients: int, *, warm_up: float, seconds: float, requests: int | None = None, timeout: float = 120.0
) -> LoadResult:
    """Run clients against a server and return what was measured."""

    async def run() -> LoadResult:
        return await Load(plan, clients, timeout).run(warm_up, seconds, requests)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(run())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("url", metavar="URL", help="of the server, such as http://127.0.0.1:8080")
    parser.add_argument(
        "--kind", choices=ROUTES, default="openai", help="openai: /v1/embeddings; infinity: /embeddings"
    )
    parser.add_argument("--route", help="another route, with OpenAI's requests and answers")
    parser.add_argument("--model", help="default: the first one that the server lists")
    parser.add_argument("--key", default="", help="sent as `Authorization: Bearer KEY`")
    parser.add_argument("--clients", type=int, default=64, help="default: 64")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured; default: 20")
    parser.add_argument("--requests", type=int, help="measure so many answers instead of so many seconds")
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="SECONDS", help="not measured; default: 2")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of a request; default: 120")
    parser.add_argument("--texts-per-request", type=int, default=1, help="default: 1")
    parser.add_argument("--texts", type=Path, help="your texts, one per line; default: 20,000 generated ones")
    parser.add_argument(
        "--references", type=Path, help=f".npy with the vectors of texts 0, {CHECK_EVERY}, {2 * CHECK_EVERY}, ..."
    )
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of each number of a vector; default: 0.001")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(arguments)
    for name in ("clients", "texts_per_request", "requests"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: give 1 or more")
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the load that the command line describes and return its figures."""
    host, port, path = split_url(options.url)
    route = path + (options.route or ROUTES[options.kind])
    asking = Asking(host, port, options.key)
    try:
        model = options.model or json.loads(asking.ask(path + MODELS[options.kind]))["data"][0]["id"]
        texts = read_texts(options.texts)
        if options.references:
            rows = np.load(options.references)
            references = {CHECK_EVERY * at: row for at, row in enumerate(rows)}
        else:
            references = own_references(asking, route, model, texts, count=20)
    except (OSError, http.client.HTTPException) as error:
        raise LoadError(f"{options.url}: no answer ({error}); is the server up?") from None
    k = options.texts_per_request
    where = {"host": host, "port": port, "route": route, "key": options.key}
    requests = build_requests(texts, **where, model=model, texts_per_request=k)
    plan = LoadPlan(host, port, requests, k, frozenset(at // k for at in references))
    window = {"warm_up": options.warm_up, "seconds": options.seconds, "requests": options.requests}
    found = run_load(plan, options.clients, **window, timeout=options.timeout)
    return summary(found, options.clients, k) | compare(found.kept, references, k, options.tolerance)


def read_texts(path: Path | None) -> list[str]:
    """Return the lines of a file, or the generated texts."""
    if path is not None:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    from benchmarks.mixed_texts import mixed_texts

    return mixed_texts()


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
