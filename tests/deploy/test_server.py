"""The server's answers: OpenAI's form, that of Text Embeddings Inference, and what it says of bad requests."""

import asyncio
import concurrent.futures
import contextlib
import json
import shutil
import sys
import threading
import time

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from cse.artifact import sha256
from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.runtime import domain_files
from cse.runtime.onnx_encoder import OnnxEncoder
from deploy.server.app import create_app
from deploy.server.batcher import Batcher
from deploy.server.command import serve_key
from deploy.server.keys import digest
from deploy.server.options import Options
from deploy.server.schema import EmbeddingRequest, EmbedRequest, SimilarityRequest
from tests.deploy.servers import CLIENT, asked, client_of, serving
from tests.export.banks import KINDS, MAPS, make_encoder, padded

JSON = {"Content-Type": "application/json"}
TEXTS = ["the cat sat", "a dog", "mat", "the cat sat on a mat", "zebra", "a dog"]


@pytest.fixture(scope="module")
def expected(small_bundle):
    return OnnxEncoder(small_bundle, provider="cpu").encode(TEXTS)


def vectors_of(answer):
    return np.array([item["embedding"] for item in answer.json()["data"]], np.float32)


def test_answers_of_each_api_hold_the_runtimes_vectors(server, small_bundle, expected):
    answer = server.post("/v1/embeddings", {"model": "small", "input": TEXTS, "dimensions": 8})
    np.testing.assert_allclose(vectors_of(answer), expected, atol=1e-6)
    told = answer.json()
    assert [item["index"] for item in told["data"]] == list(range(len(TEXTS)))
    assert (told["model"], told["object"]) == ("small", "list")
    assert told["usage"] == {"prompt_tokens": 25, "total_tokens": 25}
    for route in ("/embed", "/"):
        found = server.post(route, {"inputs": TEXTS})
        np.testing.assert_allclose(found.json(), expected, atol=1e-6)
        assert int(found.headers["x-compute-tokens"]) == 25
    raw = OnnxEncoder(small_bundle, provider="cpu").encode(TEXTS[:1], normalize=False)
    np.testing.assert_allclose(server.post("/embed", {"inputs": TEXTS[0], "normalize": False}).json(), raw, atol=1e-6)
    cosines = server.post("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}).json()
    np.testing.assert_allclose(cosines, expected[1:] @ expected[0], atol=1e-6)


PAIR = {"source_sentence": "a", "sentences": ["a dog"]}
LONG_PAIR = {"source_sentence": "a", "sentences": ["the cat sat on a mat"]}


def test_null_is_as_good_as_absent(server):
    """LiteLLM, and OpenAI's client with None, send what was not set as null."""
    for route, body, nulls in (
        ("/v1/embeddings", {"model": "small", "input": "a"}, ["encoding_format", "dimensions", "user", "more"]),
        ("/embed", {"inputs": "a"}, ["normalize", "truncate", "truncation_direction", "prompt_name", "dimensions"]),
        ("/", {"inputs": PAIR}, ["parameters", "model"]),
    ):
        answer = server.post(route, body | dict.fromkeys(nulls))
        assert answer.status_code == 200, answer.text
        assert answer.json() == server.post(route, body).json()


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"cat \ud83d \uDE00 cat \ud83d\ud83d\ude00\ude00", "cat \ufffd \ufffd cat \ufffd\U0001f600\ufffd"),
        (rb"\\ud83d \\\ud83d\n", "\\ud83d \\\ufffd\n"),
        (b"cat \xed\xa0\xbd", "cat \ufffd"),
    ],
)
def test_half_a_character_is_a_replaced_one_in_its_own_text_alone(server, sent, read):
    """JSON.stringify writes half an emoji where a text was cut in the middle of one."""
    form = b'{"model": "small", "input": ["a dog", "%b"], "user": "\\ud83d"}'
    answer = CLIENT.post(f"{server.url}/v1/embeddings", content=form % sent, headers=JSON)
    assert answer.status_code == 200, answer.text
    whole = form.replace(b"\\ud83d", b"-") % json.dumps(read)[1:-1].encode()
    assert answer.json() == server.post("/v1/embeddings", json.loads(whole)).json()


def test_a_body_that_is_not_sent_as_json_is_told_so(server):
    """As curl sends it without a header."""
    for route, status in (("/v1/embeddings", 400), ("/embed", 422)):
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = CLIENT.post(f"{server.url}{route}", content=b'{"model": "small", "input": "a"}', headers=form)
        assert answer.status_code == status
        assert "send JSON with Content-Type: application/json" in answer.text


@pytest.mark.parametrize("item", ["", {}], ids=str)
def test_a_body_of_wrong_items_makes_one_error_and_a_large_one_none(server, item):
    for shape, body in (
        (EmbeddingRequest, {"model": "small", "input": [item] * 2000}),
        (EmbedRequest, {"inputs": [item] * 2000}),
        (SimilarityRequest, {"inputs": {"source_sentence": "a", "sentences": [item] * 2000}}),
    ):
        with pytest.raises(ValidationError) as error:
            shape.model_validate(body)
        assert error.value.error_count() == 1
    answer = server.post("/similarity", {"inputs": {"source_sentence": "a", "sentences": [item] * 20_000}})
    assert (answer.status_code, "20000 texts" in answer.text) == (413, True)


def test_what_nobody_asked_for_costs_nothing(server):
    begin = time.monotonic()
    answer = server.post("/embed", {"inputs": "a", "prompt_name": "x" * 15_000_000})
    assert (answer.status_code, len(answer.text) < 300) == (400, True)
    assert time.monotonic() - begin < 4, "no name was looked for that is like it"


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(server):
    def parts():
        for _ in range(40):
            yield b"x" * 2**20

    with contextlib.suppress(httpx.WriteError):  # the server has hung up already
        answer = CLIENT.post(f"{server.url}/v1/embeddings", content=parts(), timeout=30)
        assert answer.status_code == 413 and "larger than" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "body", "status", "said"),
    [
        ("/v1/embeddings", {"input": ["a", ""]}, 400, "input[1] is empty"),
        ("/v1/embeddings", {"input": ["a", 4]}, 400, "input[1] is not valid"),
        ("/v1/embeddings", {"input": {"a": 1}}, 400, "input is not valid"),
        ("/v1/embeddings", {}, 400, "input: Field required"),
        ("/v1/embeddings", {"input": [15339]}, 400, "(LangChain: check_embedding_ctx_length=False)"),
        ("/v1/embeddings", {"input": "a", "dimensions": 7}, 400, "dimensions: 7; this model gives 8"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "model": "smal"}, 404, "model 'smal' does not exist; did you mean 'small'?"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, 413, "2049 texts; a request may have 2048"),
        ("/v1/embeddings", {"input": ["a", "cat " * 25_001]}, 413, "input[1]: 100004 characters"),
        ("/v1/embeddings", {"input": "bad"}, 424, "not a finite number"),
        ("/v1/embeddings", b"{bad", 400, ""),
        ("/v1/embeddings", b'{"model": "small", "input": "\xff"}', 400, ""),
        ("/v1/embeddings", b"[" * 10_000, 400, ""),
        ("/embed", {"inputs": []}, 400, "Empty"),
        ("/embed", {}, 422, "Validation"),
        ("/embed", {"inputs": [[9]]}, 422, "Tokenizer"),
        ("/embed", {"inputs": "the cat sat on a mat", "truncate": False}, 413, "Validation"),
        ("/embed", {"inputs": "bad"}, 424, "Backend"),
        ("/similarity", {"inputs": LONG_PAIR, "parameters": {"truncate": False}}, 413, "Validation"),
        ("/similarity", {"inputs": PAIR, "parameters": {"prompt_name": "query"}}, 400, "Validation"),
        ("/similarity", {"inputs": {"source_sentence": "", "sentences": ["a"]}}, 400, "Empty"),
        ("/similarity", {"inputs": "a"}, 422, "Validation"),
        ("/", {"inputs": PAIR | {"source_sentence": None}}, 422, "Validation"),
        ("/predict", {"inputs": [["a", "b"]]}, 422, "Validation"),
        ("/predict", {"inputs": "a dog"}, 424, "Backend"),
        ("/rerank", {"query": "a", "texts": []}, 400, "Empty"),
        ("/rerank", {"query": "a", "documents": [{"body": "a"}]}, 422, "Validation"),
        ("/rerank", {"query": "a", "texts": ["a"] * 2049}, 413, "Validation"),
        ("/rerank", {"query": "a", "texts": ["the cat sat on a mat"], "truncate": False}, 413, "Validation"),
        ("/tokenize", {"inputs": [[9]]}, 422, "Validation"),
    ],
)
def test_bad_requests(server, route, body, status, said):
    """Said in OpenAI's form, of which the message is given here, or in that of TEI, of which the kind is."""
    named = {"model": "small"} if route == "/v1/embeddings" else {}
    content = body if isinstance(body, bytes) else json.dumps(named | body)
    answer = CLIENT.post(f"{server.url}{route}", content=content, headers=JSON)
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    if named:
        assert said in error["message"] and error.keys() == {"message", "type", "param", "code"}
    else:
        assert isinstance(error, str) and answer.json().get("error_type") == said


def test_truncation_is_said_and_counted(server):
    before, long = server.metric("cse_truncated_texts_total"), "the cat sat on a mat the cat"
    answer = server.post("/v1/embeddings", {"model": "small", "input": [long, "a dog", long]})
    assert answer.headers["x-truncated"] == "2"
    assert answer.json()["usage"]["prompt_tokens"] == 6 + 4 + 6
    assert server.metric("cse_truncated_texts_total") == before + 2
    cut = server.post("/embed", {"inputs": long, "truncate": True})
    np.testing.assert_allclose(cut.json()[0], vectors_of(answer)[0], atol=1e-6)


def test_each_domain_is_a_model_whatever_runs_beside_it(bank_server, small_bank):
    encoder, random = OnnxEncoder(small_bank, provider="cpu"), np.random.default_rng(0)
    texts = [" ".join(random.choice(["the", "cat", "sits", "a"], random.integers(1, 12))) for _ in range(160)]
    names = [str(name) for name in random.choice(sorted(KINDS), len(texts))]
    widths = {card["id"]: card["dimension"] for card in bank_server.get("/v1/models").json()["data"]}
    assert widths == dict.fromkeys(KINDS, 32) | MAPS

    def ask(place):
        answer = bank_server.post("/v1/embeddings", {"model": names[place], "input": texts[place]})
        assert answer.json()["model"] == names[place]
        vector = vectors_of(answer)[0]
        assert len(vector) == widths[names[place]]
        return padded(vector)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = np.stack(list(pool.map(ask, range(len(texts)))))
    np.testing.assert_allclose(found, encoder.encode(texts, domain=names), atol=1e-5)
    alone, batches = (bank_server.metric(f"cse_batch_texts_{part}") for part in ('bucket{le="1.0"}', "count"))
    assert alone < batches, "requests shared batches"
    unnamed = bank_server.post("/embed", {"inputs": "a"})
    assert (unnamed.status_code, "name one of bare" in unnamed.json()["error"]) == (400, True)
    nothing_has_centres = bank_server.post("/v1/embeddings", {"input": "a", "model": "auto"})
    assert nothing_has_centres.status_code == 404


def test_a_folder_that_is_gone_is_503_and_a_bad_file_harms_itself_alone(small_bank, tmp_path):
    bank = shutil.copytree(small_bank, tmp_path / "bank")
    hidden = bank / "domains/hidden.safetensors"
    with serving(bank, log=tmp_path / "log") as server:

        def ask(name):
            return server.post("/v1/embeddings", {"model": name, "input": "the cat sits"})

        (bank / "domains/loop.safetensors").symlink_to("loop.safetensors")
        for _ in range(2):  # damaged, mended, damaged again
            hidden.rename(bank / "kept")
            hidden.write_bytes(b"damaged")
            for _ in range(2):
                assert ask("plain").status_code == 200
                for answer in map(ask, ("loop", "hidden")):
                    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_damaged")
            (bank / "kept").rename(hidden)
            assert ask("hidden").status_code == 200
        (bank / "domains").rename(bank / "away")
        for answer in (ask("plain"), *(server.get(route) for route in ("/ready", "/v1/models", "/info"))):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bank_unreachable")
            assert str(tmp_path) not in answer.text
        assert [server.get(route).status_code for route in ("/health", "/metrics")] == [200, 200]
        (bank / "away").rename(bank / "domains")
        assert ask("plain").status_code == 200
    said = [line["reason"] for line in server.lines() if "reason" in line]
    assert [sum(word in one for one in said) for word in ("hidden.saf", "loop.saf", "read the domains")] == [4, 4, 4]


def test_a_file_that_hangs_costs_its_own_domain_alone(small_bank, tiny_folders, tmp_path, monkeypatch):
    """As on a network that went away, where whoever opens the file waits for ever."""
    bank, free, opened = shutil.copytree(small_bank, tmp_path / "bank"), threading.Event(), domain_files.open_file
    encoder, centre = make_encoder(tiny_folders["bert"], "plain"), np.eye(1, 32, dtype=np.float32)
    add_domain(bank, make_domain(encoder, "hangs", centres=centre))  # ``auto`` waits for it too
    monkeypatch.setattr("deploy.server.models.SECONDS", 4.0)

    def open_file(path, most):
        if "hangs" in path.name:
            free.wait(60)
        return opened(path, most)

    monkeypatch.setattr(domain_files, "open_file", open_file)
    app = create_app(Options(model=str(bank)))
    hanging = [("POST", "/v1/embeddings", {"model": name, "input": "a"}) for name in ("hangs", "hangs:query", "auto")]
    others = [("GET", route, None) for route in ("/health", "/ready", "/metrics")]
    others += [("POST", "/v1/embeddings", {"model": name, "input": "a"}) for name in ("plain", "hidden")]

    async def ask():
        async with client_of(app) as client:

            def send(request):
                return client.request(*request[:2], json=request[2])

            first = [asyncio.create_task(send(request)) for request in hanging * 50]  # more than there are threads
            meanwhile = [await send(request) for request in others]
            assert not any(task.done() for task in first), "nobody waited with those who asked for the file"
            unanswered = [await task for task in first]
            free.set()
            await asyncio.sleep(0.1)
            return meanwhile, unanswered, [await send(hanging[place]) for place in (0, 2)]

    try:
        meanwhile, unanswered, freed = asyncio.run(ask())
    finally:
        free.set()
    assert [answer.status_code for answer in meanwhile] == [200] * len(others), [one.text for one in meanwhile]
    said = {(503, f"model {name!r}: its file did not answer within 4 s") for name in ("hangs", "auto")}
    assert {(answer.status_code, answer.json()["error"]["message"]) for answer in unanswered} == said
    assert [answer.status_code for answer in freed] == [200, 200]


def test_keys_close_what_embeds_and_nothing_else(small_bundle, tmp_path):
    made = [CliRunner().invoke(serve_key, ["search team"]) for _ in range(2)]
    (tmp_path / "keys").write_text("# ours\n" + "".join(one.stdout for one in made))
    keys = [one.stderr.strip() for one in made]
    body = {"model": "small", "input": "secret words"}
    with serving(small_bundle, "--api-keys", tmp_path / "keys", "--log-requests", log=tmp_path / "log") as server:
        for header in ("", "Bearer wrong", f"Basic {keys[0]}", "Bearer \xff"):
            answer = server.post("/v1/embeddings", body, headers={"Authorization": header.encode("latin-1")})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        for key in keys:
            assert server.post("/v1/embeddings", body, headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert [server.post(route, {"inputs": "a"}).status_code for route in ("/embed", "/")] == [401, 401]
        for route in ("/health", "/ready", "/metrics", "/info", "/docs", "/openapi.json", "/"):
            assert server.get(route).status_code == 200, route
        events = server.lines()
    text = server.log.read_text()
    assert not any(word in text for word in ("secret", *keys))
    requests = [line for line in events if line.get("route") == "/v1/embeddings" and line["status"] == 200]
    assert [(line["texts"], line["model"], bool(line["request"])) for line in requests] == [(1, "small", True)] * 2


def test_a_client_is_its_key_or_else_its_address_and_keys_hold_behind_a_prefix(small_bundle, tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("".join(f"{digest(key)}\n" for key in ("one", "two")))
    body, seen, submit = {"model": "small", "input": "the cat"}, [], Batcher.submit

    def noting(self, encoder, tokens, domains=(), client=None, **more):
        seen.append(client)
        return submit(self, encoder, tokens, domains, client, **more)

    monkeypatch.setattr(Batcher, "submit", noting)
    for keys in (tmp_path / "keys", None):
        app = create_app(Options(model=str(small_bundle), api_keys=keys))
        for key, address in (("one", "10.0.0.1"), ("two", "10.0.0.1"), ("one", "10.0.0.2")):
            (answer,) = asked(app, ("POST", "/v1/embeddings", body), key=key, client=(address, 1))
            assert answer.status_code == 200
    assert seen == [digest("one"), digest("two"), digest("one"), "10.0.0.1", "10.0.0.1", "10.0.0.2"]
    app = create_app(Options(model=str(small_bundle), api_keys=tmp_path / "keys"))
    for key, status in ((None, 401), ("one", 200)):
        (answer,) = asked(app, ("POST", "/prefix/v1/embeddings", body), key=key, root_path="/prefix")
        assert answer.status_code == status, "as a proxy adds it"


def test_what_cannot_be_served_is_said_in_one_line(cse, small_bundle, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "deploy.server.tracing", raising=False)
    monkeypatch.setattr("deploy.server.run.set_up", lambda: None)  # of logs, which later tests would see
    for name in ("good", "damaged"):
        shutil.copytree(small_bundle, name)
    (tmp_path / "damaged/model.onnx").write_bytes(b"x")
    (tmp_path / "empty").write_text("# nothing\n")
    for words, said in REFUSED.items():
        assert said in cse("serve", *words.format(taken=server.address[1]).split()).refused()


def test_info_and_the_id_of_a_request(server, small_bundle):
    assert server.get("/info").json()["model_sha"] == sha256(small_bundle / "model.onnx")
    for given, kept in (("abc-1", True), ("a b", False)):  # it stands in the log
        assert (server.get("/health", headers={"x-request-id": given}).headers["x-request-id"] == given) == kept


REFUSED = {
    "nothing": "no such folder",
    "damaged": "does not match bundle.json",
    "sentence-encoder@production": "not inside a DVC repository",
    "good --port {taken}": "cannot listen there",
    "good --api-keys empty": "holds no key; `cse serve-key`",
    "good --max-texts 0": "--max-texts",
    "good --threads 100000": "--threads",
    "good --drain nan": "--drain",
    "good --otel": "--otel: needs OpenTelemetry: pip install 'cse[otel]'",
}
