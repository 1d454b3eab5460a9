"""The load generator, against small servers that behave well or badly."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from benchmarks import load
from benchmarks.inputs import LONGEST, mixed_texts
from benchmarks.load import CHECK_EVERY, build_requests, compare
from benchmarks.serve import medians, ratios
from benchmarks.servers import ServerUnderTest, Setting, running
from cse.errors import CseError

TEXTS = [f"{'a' * (number % 7)} text {number}" for number in range(200)]


def vector(text: str) -> list[float]:
    return [len(text) / 1000, text.count("a") / 1000, 0.5]


def embeddings(texts: list[str]) -> str:
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    return json.dumps({"object": "list", "data": data})


class Server:
    """A real server in a thread; ``answer`` makes status and body of the n-th request."""

    def __init__(self, answer=None, chunked: bool = False) -> None:
        self.answer = answer or (lambda number, texts: (200, embeddings(texts)))
        self.chunked, self.seen = chunked, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                self.seen += 1
                status, text = self.answer(self.seen, [json.loads(body)["input"]])
                if status == 0:  # hang up without an answer
                    return
                await self.send(writer, status, text.encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def send(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        if self.chunked:
            half = len(body) // 2
            parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
            writer.write(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n" % status + parts)
        else:
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
            await writer.drain()
            await asyncio.sleep(0)  # head and body in two pieces
            writer.write(body)
        await writer.drain()


@contextmanager
def serving(server: Server):
    loop = asyncio.new_event_loop()
    found = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield found.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def run(server: Server) -> dict:
    references = np.array([vector(text) for text in TEXTS[::CHECK_EVERY]])
    with serving(server) as port:
        requests = build_requests(TEXTS, port=port, route="/v1/embeddings", model="tiny")
        return load.measure(port, requests, references, 1e-3, clients=4, warm_up=0.05, seconds=0.3)


def test_counts_what_a_good_server_answers():
    figures = run(Server())
    assert figures["errors"] == {} and figures["miscounted"] == figures["wrong"] == 0
    assert figures["requests"] > 20 and figures["compared"] > 0 and figures["largest_difference"] < 1e-9
    assert figures["requests_per_s"] == pytest.approx(figures["requests"] / figures["seconds"])
    assert figures["seconds"] == pytest.approx(0.3, abs=0.2)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert not load.faulty(figures)


@pytest.mark.parametrize(
    ("server", "key"),
    [
        (Server(lambda number, texts: (200, embeddings(texts)) if number < 30 else (429, "{}")), "429"),
        (Server(lambda number, texts: (0 if number % 10 == 0 else 200, embeddings(texts))), "connection"),
        (Server(chunked=True), "connection"),  # an answer without a length
    ],
)
def test_errors_are_counted_by_status_and_it_goes_on(server, key):
    figures = run(server)
    assert set(figures["errors"]) == {key} and figures["errors"][key] > 0 and load.faulty(figures)
    assert (figures["requests"] == 0) == server.chunked


@pytest.mark.parametrize("vectors", [0, 2])
def test_finds_answers_with_another_number_of_vectors(vectors):
    figures = run(Server(lambda number, texts: (200, embeddings(texts * vectors))))
    assert figures["requests"] == 0 and figures["miscounted"] > 0 and load.faulty(figures)


def test_finds_nonsense():
    figures = run(Server(lambda number, texts: (200, embeddings([text + "!" * 5 for text in texts]))))
    assert figures["wrong"] == figures["compared"] > 0 and load.faulty(figures)
    assert figures["largest_difference"] == pytest.approx(5e-3)


def test_a_vector_beyond_the_tolerance_is_wrong_and_one_that_is_no_number():
    body, near = (b'{"data": [{"index": 0, "embedding": [%b, 1.0]}]}' % number for number in (b"NaN", b"0.004"))
    assert compare([(0, body)], np.array([[0.0, 1.0]]), 1e-3)["wrong"] == 1
    assert compare([(0, body)], np.array([[0.0]]), 1e-3)["wrong"] == 1  # another dimension
    assert [compare([(0, near)], np.array([[0.0, 1.0]]), most)["wrong"] for most in (1e-3, 0.01)] == [1, 0]


def test_mixed_texts_are_distinct_and_of_every_length():
    texts = mixed_texts(2000)
    counts = [len(text.split()) for text in texts]
    assert len(set(texts)) == len(texts)
    assert min(counts) == 1 and max(counts) == LONGEST
    bounds = (1, 2, 4, 8, 16, 32, 64, LONGEST + 1)
    assert min(np.histogram(counts, bounds)[0]) > 50
    assert texts == mixed_texts(2000) != mixed_texts(2000, seed=2)


def test_a_server_that_does_not_start_says_why():
    program = "import sys; print('no model here'); sys.exit(3)"
    broken = ServerUnderTest("broken", (Setting("", (sys.executable, "-c", program)),))
    with (
        pytest.raises(CseError, match=r"broken: ended with 3 before its first answer:\nno model here"),
        running(broken, broken.settings[0]),
    ):
        pass
    missing = ServerUnderTest("missing", (Setting("", ("/no/such/program",)),))
    with pytest.raises(CseError, match="missing: cannot start"), running(missing, missing.settings[0]):
        pass


def test_ratios_are_of_neighbours():
    def measured(rate: float) -> dict:
        one = {"requests_per_s": rate, "p50_ms": 1 / rate, "p99_ms": 2 / rate}
        return {"cold_start_s": 1.0, "memory_megabytes": 100.0, "clients": {"64": one}}

    pairs = [(20.0, 10.0), (60.0, 20.0), (8.0, 2.0)]  # ours and a peer, on a machine that changes its speed
    rounds = [{"pairs": {"peer": {"ours": measured(a), "peer": measured(b)}}} for a, b in pairs]
    assert ratios(rounds)["peer"]["64"]["requests_per_s"] == 3
    assert medians(rounds)["cse serve"]["clients"]["64"]["requests_per_s"] == 20
