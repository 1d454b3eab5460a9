"""Replicas under Ray Serve: one is killed under load."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import signal
import threading
import time
from collections import Counter

import httpx
import numpy as np
import psutil
import pytest

from cse.export.domains import add_domain
from cse.runtime.bank import Bank
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.deploy.servers import serving
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
BODY = {"model": "small", "input": "the cat sat"}


def replicas_of(server) -> list[int]:
    """Process ids of the replicas that run."""
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie, too
            found += [child.pid] if "ServeReplica" in " ".join(child.cmdline()) else []
    return sorted(found)


def test_a_replica_that_is_killed_under_load_costs_no_request_its_answer(small_bundle, tmp_path, record_property):
    expected = OnnxEncoder(small_bundle, provider="cpu").encode([BODY["input"]])[0]
    with serving(small_bundle, "--replicas", 2, log=tmp_path / "log") as server:
        before = replicas_of(server)
        assert len(before) == 2
        over, statuses, unanswered, wrong = threading.Event(), Counter(), [], []

        def ask():
            with httpx.Client(timeout=60) as client:
                while not over.is_set():
                    try:
                        answer = client.post(f"{server.url}/v1/embeddings", json=BODY)
                    except httpx.HTTPError as error:
                        unanswered.append(repr(error))
                        continue
                    statuses[answer.status_code] += 1
                    if answer.status_code == 200:
                        vector = answer.json()["data"][0]["embedding"]
                        wrong.extend([vector] if np.abs(vector - expected).max() > 1e-5 else [])

        clients = [threading.Thread(target=ask) for _ in range(8)]
        for client in clients:
            client.start()
        try:
            wait_for(lambda: statuses[200] > 50)
            start = time.monotonic()
            os.kill(before[0], signal.SIGKILL)
            wait_for(lambda: len(set(replicas_of(server)) - {before[0]}) == 2, seconds=60)
            answered = statuses[200]
            wait_for(lambda: statuses[200] > answered + 50)
            recovery = time.monotonic() - start
        finally:
            over.set()
            for client in clients:
                client.join()
        failed = sum(count for status, count in statuses.items() if status != 200)
        assert unanswered == [] and wrong == []
        assert failed <= len(clients), "only requests that the dead replica was computing may fail"
        assert before[1] in replicas_of(server), "the other one served on"
        record_property("seconds to recover", round(recovery, 2))
        assert recovery < 60


def test_each_replica_answers_for_all_and_no_counter_falls(small_bundle, tmp_path):
    with serving(small_bundle, "--replicas", 2, "--drift", log=tmp_path / "log") as server:
        before = replicas_of(server)
        with httpx.Client(timeout=60) as client:  # whichever replica the proxy asks

            def seen() -> dict[str, float]:
                text = client.get(f"{server.url}/metrics").text
                pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
                return {series: float(value) for series, _, value in pairs}

            texts = 'cse_texts_total{model="small"}'
            counted: list[dict[str, float]] = [seen()]
            for number in range(60):
                client.post(f"{server.url}/v1/embeddings", json=BODY | {"input": ["the cat sat", "a dog"]})
                counted.append(seen())
                if number == 40:
                    os.kill(before[0], signal.SIGKILL)
                    wait_for(lambda: len(set(replicas_of(server)) - {before[0]}) == 2, seconds=60)
                if number == 20:
                    wait_for(lambda: seen()[texts] == 42)
                    drift = [client.get(f"{server.url}/drift").json()["models"][0]["texts"] for _ in range(10)]
                    assert set(drift) == {42}, "of both replicas, whichever is asked"
                    assert {client.get(f"{server.url}/health").status_code for _ in range(10)} == {200}
                    assert 'cse_model_info{model="small",version="' in "".join(counted[-1])
        falling = re.compile(r"_(total|count|sum|bucket)(\{|$)")
        for one, later in itertools.pairwise(counted):
            fell = {key: (value, later.get(key)) for key, value in one.items() if later.get(key, -1) < value}
            assert not {key for key in fell if falling.search(key)}, fell


def test_requests_that_name_their_domain_go_where_it_is(small_bank, tmp_path):
    """Each of the two replicas reads its share of the domains; without the header, both read all. Then they end."""
    bank, names = shutil.copytree(small_bank, tmp_path / "bank"), [f"d{number}" for number in range(24)]
    domain = Bank(bank).domain("plain")
    for name in names:
        add_domain(bank, dataclasses.replace(domain, facts=dataclasses.replace(domain.facts, name=name)))
    size = sum(tensor.nbytes for tensor in domain.tensors().values())
    with serving(bank, "--replicas", 2, log=tmp_path / "log") as server, httpx.Client(timeout=60) as client:

        def ask(header: bool) -> int:
            """Ask for all domains, and return how many the replicas have in memory together."""
            for name in names:
                named = {"serve_multiplexed_model_id": name} if header else {}
                body = {"inputs": BODY["input"], "model": name}
                assert client.post(f"{server.url}/embed", json=body, headers=named).status_code == 200
            time.sleep(2.5)  # the replicas tell each other, and Ray Serve, what they have
            return round(server.metric("cse_domain_bytes") / size)

        assert [ask(header=True) for _ in range(2)][-1] <= 1.2 * len(names)
        wait_for(lambda: ask(header=False) > 1.5 * len(names))
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(replicas_of(server)) == 2
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    wait_for(lambda: not any(child.is_running() and child.status() != "zombie" for child in children), seconds=30)
