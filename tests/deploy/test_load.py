"""The load generator, against small servers that behave well or badly."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from benchmarks import load
from benchmarks.asking import LoadError
from benchmarks.load import CHECK_EVERY, compare, joined_chunks, percentile, read_vectors
from benchmarks.mixed_texts import LONGEST, histogram, mixed_texts
from benchmarks.serve import medians, ratios
from benchmarks.servers import ServerUnderTest, Setting, running


def vector(text: str) -> list[float]:
    return [len(text) / 1000, text.count("a") / 1000, 0.5]


def embeddings(texts: list[str]) -> str:
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    return json.dumps({"object": "list", "data": data})


class Server:
    """A real server in a thread; ``answer`` makes status and body of the n-th request for embeddings."""

    def __init__(self, answer=None, chunked: bool = False) -> None:
        self.answer = answer or (lambda number, texts: (200, embeddings(texts)))
        self.chunked, self.seen, self.texts = chunked, 0, []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].split()
                body = await reader.readexactly(int(length[0])) if length else b""
                if head.startswith(b"GET"):
                    status, text = 200, '{"data": [{"id": "tiny"}]}'
                else:
                    given = json.loads(body)["input"]
                    texts = [given] if isinstance(given, str) else given
                    self.seen, self.texts = self.seen + 1, [*self.texts, *texts]
                    status, text = self.answer(self.seen, texts)
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
    ready, loop = threading.Event(), asyncio.new_event_loop()
    port = []

    async def begin() -> None:
        found = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port.append(found.sockets[0].getsockname()[1])
        ready.set()

    def run() -> None:
        loop.create_task(begin())
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(f"{'a' * (number % 7)} text {number}" for number in range(200)), encoding="utf-8")
    return path


def run(url: str, texts, *arguments: object) -> dict:
    given = ["--texts", texts, "--warm-up", "0.05", "--seconds", "0.3", "--clients", "4", *arguments]
    return load.measure(load.parse([url, *map(str, given)]))


@pytest.mark.parametrize("chunked", [False, True])
def test_counts_what_a_good_server_answers(texts, chunked):
    server = Server(chunked=chunked)
    with serving(server) as url:
        figures = run(url, texts)
    assert figures["errors"] == {} and figures["miscounted"] == figures["wrong"] == 0
    assert figures["requests"] > 20 and figures["compared"] > 0 and figures["largest_difference"] < 1e-9
    assert figures["requests_per_s"] == pytest.approx(figures["requests"] / figures["seconds"])
    assert figures["seconds"] == pytest.approx(0.3, abs=0.2)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert not load.faulty(figures)


def test_counts_errors_by_status(texts):
    with serving(Server(lambda number, texts: (200, embeddings(texts)) if number < 30 else (429, "{}"))) as url:
        figures = run(url, texts)
    assert set(figures["errors"]) == {"429"} and load.faulty(figures)


def test_counts_lost_connections_and_goes_on(texts):
    with serving(Server(lambda number, texts: (0 if number % 10 == 0 else 200, embeddings(texts)))) as url:
        figures = run(url, texts)
    assert figures["errors"]["connection"] > 0 and figures["requests"] > figures["errors"]["connection"]


def test_finds_answers_with_too_few_vectors(texts):
    with serving(Server(lambda number, texts: (200, embeddings(texts[:1])))) as url:
        figures = run(url, texts, "--texts-per-request", 2)
    assert figures["requests"] == 0 and figures["miscounted"] > 0 and load.faulty(figures)


def test_finds_nonsense_under_load(texts):
    alone = len(range(0, 200, CHECK_EVERY))  # references, asked for one at a time

    def answer(number: int, texts: list[str]) -> tuple[int, str]:
        return 200, embeddings(texts if number <= alone else [text + "!" * 5 for text in texts])

    with serving(Server(answer)) as url:
        figures = run(url, texts)
    assert figures["wrong"] == figures["compared"] > 0 and load.faulty(figures)
    assert figures["largest_difference"] == pytest.approx(5e-3)


def test_compares_with_given_references(texts, tmp_path):
    lines = texts.read_text(encoding="utf-8").splitlines()
    np.save(tmp_path / "right.npy", [vector(text) for text in lines[::CHECK_EVERY]])
    np.save(tmp_path / "wrong.npy", [vector(text + "aaaa") for text in lines[::CHECK_EVERY]])
    with serving(Server()) as url:
        assert run(url, texts, "--references", tmp_path / "right.npy")["wrong"] == 0
        assert run(url, texts, "--references", tmp_path / "wrong.npy")["wrong"] > 0
        assert run(url, texts, "--references", tmp_path / "wrong.npy", "--tolerance", 0.01)["wrong"] == 0


def test_percentiles_are_nearest_rank():
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([3.0], 99) == 3
    assert math.isnan(percentile([], 50))


def test_reads_base64_and_any_order():
    rows = np.array([[1.0, 2.0], [3.0, 4.0]], dtype="<f4")
    items = [{"index": at, "embedding": base64.b64encode(rows[at].tobytes()).decode()} for at in (1, 0)]
    np.testing.assert_array_equal(read_vectors(json.dumps({"data": items}).encode()), rows)
    assert joined_chunks(b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n") == b"abcde"


def test_a_vector_that_is_no_number_is_wrong():
    body = b'{"data": [{"index": 0, "embedding": [NaN, 1.0]}]}'
    assert compare([(0, body)], {0: np.array([0.0, 1.0])}, 1, 1e-3)["wrong"] == 1
    assert compare([(0, body)], {0: np.array([0.0])}, 1, 1e-3)["wrong"] == 1  # another dimension


def test_mixed_texts_are_distinct_and_of_every_length():
    texts = mixed_texts(2000)
    counts = [len(text.split()) for text in texts]
    assert len(set(texts)) == len(texts) == sum(histogram(texts).values())
    assert min(counts) == 1 and max(counts) == LONGEST
    assert min(histogram(texts).values()) > 50
    assert texts == mixed_texts(2000) != mixed_texts(2000, seed=2)


def test_a_server_that_does_not_start_says_why():
    program = "import sys; print('no model here'); sys.exit(3)"
    broken = ServerUnderTest("broken", (Setting("", (sys.executable, "-c", program)),))
    with (
        pytest.raises(LoadError, match=r"broken: ended with 3 before its first answer:\nno model here"),
        running(broken),
    ):
        pass
    missing = ServerUnderTest("missing", (Setting("", ("/no/such/program",)),))
    with pytest.raises(LoadError, match="missing: cannot start"), running(missing):
        pass


def test_ratios_are_of_neighbours():
    def measured(rate: float) -> dict:
        one = {"requests_per_s": rate, "texts_per_s": rate, "p50_ms": 1 / rate, "p99_ms": 2 / rate}
        return {"cold_start_s": 1.0, "memory_megabytes": 100.0, "clients": {"64": one}}

    pairs = [(20.0, 10.0), (60.0, 20.0), (8.0, 2.0)]  # ours and a peer, on a machine that changes its speed
    rounds = [{"pairs": {"peer": {"ours": measured(a), "peer": measured(b)}}} for a, b in pairs]
    assert ratios(rounds)["peer"]["64"]["requests_per_s"] == 3
    assert medians(rounds)["servers"]["cse serve"]["clients"]["64"]["requests_per_s"] == 20
