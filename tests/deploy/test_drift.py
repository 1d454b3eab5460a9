"""Drift of a running server: which texts move the distance, whose sketch they enter, what is said where none is."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from cse.export.bank import make_domain, with_sketch
from cse.export.domains import add_domain
from cse.runtime.bundle import MODEL, TOKENIZER, describe_files
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.sketch import HALF_LIFE, SKETCH, Sketch, sketch_of, write_sketch
from cse.runtime.tokens import Tokens
from deploy.server.drift import Drift, queries
from deploy.server.models import Served, Target
from tests.deploy.servers import serving
from tests.export.banks import make_encoder
from tests.runtime.conftest import DIMENSION, edit

ANIMALS, ACTIONS = ["cat", "dog", "mat", "the"], ["sat", "on", "a", "zebra"]


def texts_of(words, count, seed):
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(words, k=4)) for _ in range(count)]


@pytest.fixture(scope="module")
def sketched(small_bundle, tmp_path_factory):
    """The small bundle, with a sketch of texts about animals."""
    folder = shutil.copytree(small_bundle, tmp_path_factory.mktemp("sketched") / "small")
    vectors = OnnxEncoder(folder, provider="cpu").encode(texts_of(ANIMALS, 500, 0))
    write_sketch(folder / SKETCH, sketch_of(vectors))
    edit(folder, files=describe_files(folder, [MODEL, TOKENIZER, SKETCH]))
    return folder


def drift_of(server):
    answer = httpx.get(f"{server.url}/drift")
    assert answer.status_code == 200, answer.text
    assert answer.json()["half_life"] == HALF_LIFE
    return {one["model"]: one for one in answer.json()["models"]}


def test_the_same_texts_do_not_move_it_and_others_do(sketched, tmp_path):
    with serving(sketched, "--drift", log=tmp_path / "log") as server:
        before = drift_of(server)["small"]
        assert before == {
            "model": "small", "version": httpx.get(f"{server.url}/info").json()["version"], "distance": None,
            "texts": 0, "distinct_texts": 0, "reference_texts": 500,
            "reason": "fewer than 20 different texts so far",
        }  # fmt: skip
        assert "cse_drift_distance{" not in httpx.get(f"{server.url}/metrics").text
        alike, others = texts_of(ANIMALS, 1500, 1), texts_of(ACTIONS, 1500, 2)
        for part in (alike[:3], alike[3:500], alike[500:]):  # below and above what fills a pile
            server.post("/v1/embeddings", {"model": "small", "input": part})
        same = drift_of(server)["small"]
        assert (same["texts"], same["reason"]) == (1500, None)
        assert same["distance"] < 0.02
        # raw vectors, and those of cosines, enter at unit length too
        server.post("/embed", {"inputs": others[:1000], "normalize": False})
        server.post("/similarity", {"inputs": {"source_sentence": others[1000], "sentences": others[1001:]}})
        moved = drift_of(server)["small"]
        assert (moved["texts"], moved["distance"] > 0.2) == (3000, True)
        assert server.metric('cse_drift_distance{model="small"}') == moved["distance"]
        server.post("/v1/embeddings", {"model": "small", "input": "zebra"})
        assert server.metric("cse_drift_distance{") != moved["distance"], "the metrics are as new as the route"

        whole = Sketch(DIMENSION)
        asked = [*alike, *others, "zebra"]
        places = {text: place for place, text in enumerate(dict.fromkeys(asked))}
        whole.add(OnnxEncoder(sketched, provider="cpu").encode(asked), [places[text] for text in asked])
        expected = whole.distance(Served.load(sketched, "x", None, provider="cpu", threads=1).reference)
        assert drift_of(server)["small"]["distance"] == pytest.approx(expected, abs=1e-5)


def test_the_same_few_texts_again_and_again_have_not_moved(sketched, tmp_path):
    """However often they come, they are so many; other texts are noticed all the same."""
    own = list(dict.fromkeys(texts_of(ANIMALS, 100, 3)))
    with serving(sketched, "--drift", log=tmp_path / "log") as server:
        for _ in range(5):
            server.post("/v1/embeddings", {"model": "small", "input": [*own[:3], *own[:1] * 200]})
        few = drift_of(server)["small"]
        assert (few["distance"], few["texts"], few["distinct_texts"]) == (None, 1015, 3)
        assert few["reason"] == "fewer than 20 different texts so far"
        server.post("/v1/embeddings", {"model": "small", "input": [*own[:30], *own[:1] * 500]})
        enough = drift_of(server)["small"]
        assert (enough["distance"] < 0.1, enough["texts"], enough["distinct_texts"]) == (True, 1545, 30)
    others = list(dict.fromkeys(texts_of(ACTIONS, 100, 3)))[:30]
    with serving(sketched, "--drift", log=tmp_path / "log") as server:
        server.post("/v1/embeddings", {"model": "small", "input": [*others, *others[:1] * 500]})
        assert drift_of(server)["small"]["distance"] > 0.2


E5 = {"query": "query: ", "passage": "passage: "}
LONGER = {"query": "", "document": "text: "}


@pytest.mark.parametrize(
    ("texts", "role", "inputs", "counted"),
    [
        ({}, None, ["a", "query: b"], [0, 1]),
        ({}, None, [[4], [5]], [0, 1]),
        (E5, "query", ["query: a", "query: b"], [0, 1]),
        (E5, "passage", ["passage: a"], []),
        (E5, None, ["query: a", "passage: b", "c", "query: d"], [0, 3]),
        (E5, None, [[4], [5]], []),
        (LONGER, None, ["a", "text: b"], [0]),
        (LONGER, "document", ["text: b"], []),
        ({"query": "", "document": ""}, "document", ["a"], []),
        ({"query": "", "document": ""}, None, ["a", "b"], [0, 1]),
        ({"topic": "topic: "}, None, ["a", "topic: b"], [0]),
        ({"topic": "topic: "}, "topic", ["topic: b"], []),
    ],
)
def test_only_what_is_asked_for_as_a_query_counts(texts, role, inputs, counted):
    assert queries(inputs, role, texts) == counted


def test_off_it_says_how_to_turn_it_on(server):
    answer = httpx.get(f"{server.url}/drift")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "drift_off")
    assert "without --drift" in answer.json()["error"]["message"]
    assert httpx.get(f"{server.url}/info").json()["drift"] is None


def test_a_bundle_without_a_sketch_has_no_distance(small_bundle, tmp_path):
    with serving(small_bundle, "--drift", log=tmp_path / "log") as server:
        server.post("/v1/embeddings", {"model": "small", "input": texts_of(ANIMALS, 10, 0)})
        found = drift_of(server)["small"]
        assert (found["distance"], found["texts"], found["reference_texts"]) == (None, 10, 0)
        assert "export it again" in found["reason"]
        assert "cse_drift_distance{" not in httpx.get(f"{server.url}/metrics").text
        assert httpx.get(f"{server.url}/info").json()["drift"] == "/drift"


def test_each_domain_of_a_bank_has_its_own(tiny_folders, empty_banks, tmp_path):
    bank = shutil.copytree(empty_banks("bert"), tmp_path / "bank")
    opened = OnnxEncoder(bank, provider="cpu")
    words = {"headed": ["cat", "mat", "sofa", "sleeps"], "hidden": ["music", "river", "rain", "near"]}
    for name, own in words.items():
        centre = opened.encode([" ".join(own)], normalize=True, domain=opened.bank.bare)
        domain = make_domain(make_encoder(tiny_folders["bert"], name), name, centres=centre)
        sketch = sketch_of(opened.encode(texts_of(own, 300, 0), domain=domain))
        add_domain(bank, with_sketch(domain, sketch) if name == "headed" else domain)
    with serving(bank, "--drift", log=tmp_path / "log") as server:
        mixed = [*texts_of(words["headed"], 200, 1), *texts_of(words["hidden"], 30, 1)]
        answer = server.post("/v1/embeddings", {"model": "auto", "input": mixed}).json()
        chosen = [item["domain"] for item in answer["data"]]
        found = drift_of(server)
        assert found.keys() == words.keys(), "texts of `auto` enter the sketch of the domain that answered"
        assert {name: one["texts"] for name, one in found.items()} == {name: chosen.count(name) for name in words}
        assert found["headed"]["distance"] < 0.05
        assert (found["hidden"]["distance"], "--data" in found["hidden"]["reason"]) == (None, True)
        server.post("/v1/embeddings", {"model": "headed", "input": texts_of(words["hidden"], 200, 2)})
        assert drift_of(server)["headed"]["distance"] > 0.1
        replacing = make_domain(make_encoder(tiny_folders["bert"], "headed", 5), "headed")
        sketch = sketch_of(opened.encode(mixed, domain=replacing))
        add_domain(bank, with_sketch(replacing, sketch), replace=True)
        again = drift_of(server)["headed"]
        assert (again["texts"], again["distance"], again["reference_texts"]) == (0, None, 230)
        assert again["version"] != found["headed"]["version"]


# ---- the pile -------------------------------------------------------------------------------------------------------


def stand_in(seed):
    """A model that only has a name and a sketch."""
    vectors = np.random.default_rng(seed).normal(size=(300, DIMENSION)).astype(np.float32)
    encoder = SimpleNamespace(bank=None, dimension=DIMENSION)
    return Served(encoder, "small", f"v{seed}", sketch_of(vectors)), vectors


def tokens_of(first, count):
    """Tokens of so many different texts."""
    return Tokens.of([np.array([number], np.int32) for number in range(first, first + count)])


def test_a_model_that_takes_over_starts_a_new_sketch():
    (old, theirs), (new, own) = stand_in(1), stand_in(2)
    in_service = [old]

    async def check():
        with ThreadPoolExecutor(1) as beside:  # one thread: what was noted before is counted
            drift = Drift(lambda: in_service[0], beside)
            for target in (old, new):
                in_service[0] = target
                drift.note(
                    Target(target, "small", None, auto=False), [], theirs if target is old else own, tokens_of(0, 300)
                )
            late = Target(old, "small", None, auto=False), [], theirs, tokens_of(900, 300)
            drift.note(*late)  # a request that was in progress
            drift.note(Target(new, "small", None, auto=False), [], own[:50], tokens_of(300, 50))
            return await drift.distances()

    (found,) = asyncio.run(check())["models"]
    assert (found["version"], found["texts"], found["reference_texts"]) == ("v2", 350, 300)
    assert found["distance"] < 0.02


def test_a_request_pays_nearly_nothing():
    served, vectors = stand_in(1)
    target = Target(served, "small", None, auto=False)
    with ThreadPoolExecutor(1) as beside:
        drift = Drift(lambda: served, beside)
        best = min(_seconds(drift, target, vectors[:1], tokens_of(0, 1)) for _ in range(20))
        assert best < 50e-6
        assert len(drift._pile) < 1024, "piles do not grow without end"


def _seconds(drift, target, vectors, tokens):
    start = time.perf_counter()
    for _ in range(200):
        drift.note(target, [], vectors, tokens)
    return (time.perf_counter() - start) / 200
