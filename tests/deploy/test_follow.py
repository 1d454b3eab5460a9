"""A server that follows a stage of the registry: real git tags, files from DVC, requests all the while."""

import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import numpy as np
import pytest

from cse.artifact import sha256
from cse.runtime.bundle import MODEL
from cse.runtime.onnx_encoder import OnnxEncoder
from deploy.server.models import Served
from deploy.server.registry import Follower
from flows.registry import assign, find, register
from tests.deploy.servers import serving
from tests.flows.conftest import first_commit, repository  # noqa: F401 - fixtures
from tests.flows.repositories import commit
from tests.parts import refusal
from tests.rows import write_lines
from tests.runtime.conftest import make_table, reseal, write_bundle
from tests.waiting import wait_for

NAME, TEXT = "sentence-encoder", "the cat sat"


def publish(root, bundle) -> None:
    """Track a bundle with DVC, register it and put it in production."""
    shutil.rmtree(root / "data/bundle", ignore_errors=True)
    shutil.copytree(bundle, root / "data/bundle")
    subprocess.run([sys.executable, "-m", "dvc", "add", "--quiet", "data/bundle"], cwd=root, check=True)
    model = register(root, NAME, commit(root, f"bundle {bundle.name}"))
    assign(root, model, "production")


@contextmanager
def load(url, allowed):
    """Four clients ask without a pause: how often each of the allowed vectors was the answer, and whatever else was."""
    answers, wrong, over = [0] * len(allowed), [], threading.Event()

    def ask():
        with httpx.Client(timeout=30) as client:
            while not over.is_set():
                answer = client.post(f"{url}/v1/embeddings", json={"model": NAME, "input": TEXT})
                found = answer.json()["data"][0]["embedding"] if answer.status_code == 200 else []
                near = [place for place, one in enumerate(allowed) if found and np.abs(one - found).max() < 1e-5]
                wrong.extend([] if near else [answer.text])
                for place in near:
                    answers[place] += 1

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask) for _ in range(4)]
        try:
            yield answers, wrong
        finally:
            over.set()
        assert [client.result() for client in clients] == [None] * 4


@pytest.mark.slow
def test_promotions_take_over_without_a_failed_request_and_a_broken_one_does_not(small_bundle, repository, tmp_path):  # noqa: F811
    second = write_bundle(tmp_path / "second", table=make_table()[:, ::-1].copy())  # with other word vectors
    broken = shutil.copytree(second, tmp_path / "broken")
    (broken / MODEL).write_bytes(b"no graph")
    reseal(broken)
    vectors = [OnnxEncoder(folder, provider="cpu").encode(TEXT) for folder in (small_bundle, second)]
    assert np.abs(vectors[0] - vectors[1]).max() > 0.1

    publish(repository, small_bundle)
    server_options = (f"{NAME}@production", "--follow-seconds", 0.5)
    with serving(*server_options, log=tmp_path / "log", cwd=repository) as server:

        def version():
            return server.get("/info").json()["version"]

        assert version() == "v1.0.0"
        with load(server.url, vectors) as (answers, wrong):
            wait_for(lambda: answers[0] > 20)
            publish(repository, second)
            wait_for(lambda: version() == "v1.1.0", seconds=60)
            wait_for(lambda: answers[1] > 20)
            publish(repository, broken)
            wait_for(lambda: server.metric("cse_model_load_failures_total") >= 1, seconds=60)
            assert version() == "v1.1.0", "the old one goes on serving"
            assign(repository, find(repository, NAME, "v1.0.0"), "production")
            seen = answers[0]
            wait_for(lambda: version() == "v1.0.0" and answers[0] > seen + 20, seconds=60)
        assert wrong == []
        events = [line["event"] for line in server.lines()]
    assert any(
        "v1.2.0 was not taken; v1.1.0 goes on serving" in event and "onnxruntime cannot load" in event
        for event in events
    )
    copies = sorted(path.name for path in (repository / ".cse/serving").glob("sentence-encoder@*") if path.is_dir())
    assert copies == [f"{NAME}@v1.{minor}.0" for minor in (0, 1, 2)]


@pytest.mark.slow
def test_a_damaged_copy_is_pulled_again_and_a_foreign_folder_is_kept(small_bundle, repository, monkeypatch):  # noqa: F811
    publish(repository, small_bundle)
    monkeypatch.chdir(repository)
    load = partial(Served.load, provider="cpu", threads=1)

    def start():
        follower = Follower(f"{NAME}@v1.0.0", load=load, take=pytest.fail, failed=pytest.fail)
        served = follower.start(3600)
        follower.stop()
        return served

    assert start().version == "v1.0.0"
    copy = repository / f".cse/serving/{NAME}@v1.0.0"
    (copy / MODEL).write_bytes(b"damaged")
    assert start().sha256 == sha256(small_bundle / MODEL)
    shutil.rmtree(copy)
    write_lines(copy / "thesis.txt", ["mine"])
    assert "sentence-encoder@v1" in refusal(start)
    assert [(path.name, path.read_text()) for path in copy.iterdir()] == [("thesis.txt", "mine\n")]
