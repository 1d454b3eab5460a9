"""What clients do wrong with a connection or a request, and what becomes of the others."""

import asyncio
import contextlib
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from cse.runtime.onnx_encoder import OnnxEncoder
from deploy.server.app import create_app
from deploy.server.keys import digest
from deploy.server.options import Options
from tests.deploy.servers import asked, client_of, serving
from tests.waiting import wait_for

BODY = {"model": "small", "input": "the cat sat"}


def connected(server):
    return socket.create_connection(server.address, timeout=30)


def test_beyond_the_most_connections_requests_are_refused(small_bundle, tmp_path):
    with serving(small_bundle, "--max-connections", 20, log=tmp_path / "log") as server:
        silent = [connected(server) for _ in range(19)]
        wait_for(lambda: server.get("/health").status_code == 503)
        for one in silent:
            one.close()
        wait_for(lambda: server.get("/health").status_code == 200)


def test_a_request_that_never_ends_is_given_up(small_bundle, tmp_path):
    with serving(small_bundle, "--receive-timeout", 1, log=tmp_path / "log") as server, connected(server) as slow:
        slow.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        answer = slow.recv(4096)
        while b"}}" not in answer:  # head and body may come apart
            answer += slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408") and b'"code":"slow_request"' in answer
        assert server.post("/v1/embeddings", BODY).status_code == 200


def test_rows_of_a_client_that_goes_away_are_dropped(small_bundle, tmp_path):
    content = json.dumps(BODY | {"input": [f"the cat sat {'mat ' * (index % 4)}" for index in range(2048)]})
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    # one client may fill half of what is answered in time
    options = ("--batch-tokens", 6, "--threads", 1, "--max-queue-tokens", 1_000_000, "--timeout", 600)
    with serving(small_bundle, *options, log=tmp_path / "log") as server:
        leaving = [connected(server) for _ in range(10)]  # at once: they share the queue, so that few are done early
        for one in leaving:
            one.sendall((head + content).encode())
        wait_for(lambda: server.metric("cse_queue_texts ") > 0)
        for one in leaving:
            one.close()
        wait_for(lambda: server.metric("cse_queue_texts ") == 0, seconds=5)
        counted = 'cse_requests_total{route="/v1/embeddings",status="%d"}'
        wait_for(lambda: server.metric(counted % 499) + server.metric(counted % 200) == 10)
        assert server.metric(counted % 499) >= 5
        assert server.metric("cse_batch_texts_sum") < 10 * 2048, "not all were computed"
        assert server.post("/v1/embeddings", BODY).status_code == 200


def test_sigterm_lets_requests_in_progress_finish(small_bundle, tmp_path):
    texts = ["the cat sat", "a dog"] * 8_000  # seconds of work: the signal comes before it ends
    options = ("--batch-tokens", 6, "--threads", 1, "--max-texts", len(texts), "--timeout", 300)
    with ThreadPoolExecutor() as pool, serving(small_bundle, *options, log=tmp_path / "log") as server:
        asking = pool.submit(server.post, "/v1/embeddings", BODY | {"input": texts})
        wait_for(lambda: server.metric("cse_queue_texts ") > 0)
        server.process.send_signal(signal.SIGTERM)
        assert len(asking.result().json()["data"]) == len(texts)
        assert server.process.wait(20) == 0
    assert "draining" in [line["event"] for line in server.lines()]


def test_a_body_that_nobody_needs_is_not_read(small_bundle, tmp_path):
    (tmp_path / "keys").write_text(f"{digest('key')}\n")
    with serving(small_bundle, "--api-keys", tmp_path / "keys", "--max-body", 2**20, log=tmp_path / "log") as server:
        for path, length, status, authorization in (
            ("/health", 2**19, 200, ""),
            ("/v1/embeddings", 2**19, 401, "Authorization: Bearer wrong"),
            ("/v1/embeddings", 2**30, 413, "Authorization: Bearer key"),
        ):
            method, answer = "GET" if path == "/health" else "POST", b""
            head = f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", authorization
            with connected(server) as one:
                one.sendall("\r\n".join([*filter(None, head), "", ""]).encode())
                with contextlib.suppress(ConnectionResetError):
                    while chunk := one.recv(65536):  # until the server hangs up; not a byte of the body was sent
                        answer += chunk
            assert answer.startswith(b"HTTP/1.1 %d" % status)
            assert b"connection: close" in answer


def test_a_browser_cannot_bring_another_origin_to_a_server_without_keys(server):
    port = server.address[1]
    for headers, status in (
        ({"Host": f"rebound.example:{port}"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}, 200),
        ({}, 200),
    ):
        assert server.post("/v1/embeddings", BODY, headers=headers).status_code == status, headers
    answer = server.get("/health/", headers={"Host": "localhost"})
    assert (answer.status_code, answer.headers.get("location")) == (404, None)


def test_what_is_taken_is_finished_however_long_it_takes_unless_nothing_is_computed(small_bundle, monkeypatch):
    """Eight requests at once, whose work takes eight times what is allowed between two results."""
    app = create_app(Options(model=str(small_bundle), timeout=0.5, batch_tokens=6, threads=1))
    run, free = OnnxEncoder.embed_rows, threading.Event()
    monkeypatch.setattr(OnnxEncoder, "embed_rows", lambda *given, **options: time.sleep(0.05) or run(*given, **options))

    async def ask():
        async with client_of(app) as client:
            body = BODY | {"input": ["the cat sat"] * 10}
            return await asyncio.gather(*(client.post("/v1/embeddings", json=body, timeout=60) for _ in range(8)))

    answers = asyncio.run(ask())
    assert [(answer.status_code, len(answer.json()["data"])) for answer in answers] == [(200, 10)] * 8
    monkeypatch.setattr(OnnxEncoder, "embed_rows", lambda *given, **options: free.wait(30))
    try:
        (answer,) = asked(app, ("POST", "/v1/embeddings", BODY))
    finally:
        free.set()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["message"] == "nothing was computed within 0.5 s"


@pytest.mark.slow
def test_no_request_breaks_the_server(server):
    """Made up from the OpenAPI document: no answer of 5xx, none that the document does not promise."""
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    wanted = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 13
    for mode, operation in product(schemathesis.GenerationMode, operations):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def send(case):
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "small"  # else nearly all end at an unknown model
            case.call_and_validate(checks=[not_a_server_error, *wanted])

        with contextlib.suppress(Unsatisfiable):  # a route without input has no wrong request
            send()
    for route in ("/v1/embeddings", "/embed", "/similarity"):
        answered = server.metric(f'cse_requests_total{{route="{route}",status="200"}}')
        refused = server.metric(f'cse_requests_total{{route="{route}",status="4')
        assert answered > 3 and refused > 3, route
    assert server.metric('cse_requests_total{route="other",status="5') == 0
    assert server.get("/health").status_code == 200
