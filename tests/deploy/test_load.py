"""The load generator, against small servers that behave well or badly."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
    """A real server; ``answer`` makes status and body of the n-th request, status 0 hangs up without an answer."""

    def __init__(self, answer=None, chunked: bool = False) -> None:
        self.answer = answer or (lambda number, texts: (200, embeddings(texts)))
        self.chunked, self.numbers = chunked, itertools.count(1)


@contextmanager
def serving(server: Server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def do_POST(self):
            text = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
            status, body = server.answer(next(server.numbers), [text])
            self.close_connection = status == 0
            if status:
                self.send_response(status)
                self.send_header(*("transfer-encoding", "chunked") if server.chunked else ("content-length", len(body)))
                self.end_headers()  # head and body in two pieces
                self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found.server_port
        found.shutdown()


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
    ("server", "key", "goes_on"),
    [
        (Server(lambda number, texts: (200, embeddings(texts)) if number < 30 else (429, "{}")), "429", None),
        (Server(lambda number, texts: (0 if number % 10 == 0 else 200, embeddings(texts))), "connection", True),
        (Server(chunked=True), "connection", False),  # an answer without a length
    ],
)
def test_errors_are_counted_by_status(server, key, goes_on):
    figures = run(server)
    assert set(figures["errors"]) == {key} and figures["errors"][key] > 0 and load.faulty(figures)
    assert goes_on is None or (figures["requests"] > figures["errors"][key]) == goes_on


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
