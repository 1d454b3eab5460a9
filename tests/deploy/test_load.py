"""The load generator, against small servers that behave well or badly."""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from benchmarks import load
from benchmarks.load import CHECK_EVERY, build_requests

TEXTS = [f"{'a' * (number % 7)} text {number}" for number in range(200)]


def vector(text: str) -> list[float]:
    return [len(text) / 1000, text.count("a") / 1000, 0.5]


def embeddings(texts: list[str]) -> str:
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    return json.dumps({"object": "list", "data": data})


@contextmanager
def serving(answer):
    """A real server; ``answer`` makes status and body of the n-th request, status 0 hangs up without an answer."""
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def do_POST(self):
            text = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
            status, body = answer(next(numbers), [text])
            self.close_connection = status == 0
            if status:
                self.send_response(status)
                self.send_header("content-length", len(body))
                self.end_headers()  # head and body in two pieces
                self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found.server_port
        found.shutdown()


@pytest.mark.parametrize(
    ("answer", "errors", "faults"),
    [
        (lambda number, texts: (200, embeddings(texts)), set(), set()),
        (lambda number, texts: (429 if number > 30 else 200, embeddings(texts)), {"429"}, set()),
        (lambda number, texts: (0 if number % 10 == 0 else 200, embeddings(texts)), {"connection"}, set()),
        (lambda number, texts: (200, embeddings(texts * 2)), set(), {"miscounted"}),
        (lambda number, texts: (200, embeddings([text + "!" * 5 for text in texts])), set(), {"wrong"}),
    ],
    ids=["good", "full", "hangs up", "two vectors", "other vectors"],
)
def test_what_a_server_answers_is_counted_and_compared(answer, errors, faults):
    references = np.array([vector(text) for text in TEXTS[::CHECK_EVERY]])
    with serving(answer) as port:
        requests = build_requests(TEXTS, port=port, route="/v1/embeddings", model="tiny")
        found = load.measure(port, requests, references, 1e-3, clients=4, warm_up=0.05, seconds=0.3)
    assert set(found["errors"]) == errors
    assert {name for name in ("miscounted", "wrong") if found[name]} == faults
    assert load.faulty(found) == bool(errors or faults)
    if not errors | faults:
        assert found["requests"] > 20 and found["compared"] > 0 and found["largest_difference"] < 1e-9
        assert found["requests_per_s"] == pytest.approx(found["requests"] / found["seconds"])
