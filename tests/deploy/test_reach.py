"""What services of today have: ranked texts, tokens, small vectors, a cache and spans."""

import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from cse.export.bundle import make_domain
from cse.export.domains import add_domain, remove_domain
from cse.runtime.onnx_encoder import OnnxEncoder
from deploy.server.app import create_app
from deploy.server.cache import Cache
from deploy.server.options import Options
from tests.deploy.servers import asked, serving
from tests.export.banks import make_encoder
from tests.waiting import wait_for

QUERY, TEXTS = "the cat", ["a dog", "the cat sat", "mat"]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture(scope="module")
def encoder(small_bundle):
    return OnnxEncoder(small_bundle, provider="cpu")


def embeddings(app, texts, **more):
    body = {"model": "small", "input": texts} | more
    (answer,) = asked(app, ("POST", "/v1/embeddings", body))
    return [item["embedding"] for item in answer.json()["data"]]


def count(app, series):
    (answer,) = asked(app, ("GET", "/metrics", None))
    return sum(float(line.split()[-1]) for line in answer.text.splitlines() if line.startswith(series))


def test_texts_are_ranked_by_cosine_in_the_form_of_each_api(server, encoder):
    cosines = encoder.encode(TEXTS) @ encoder.encode(QUERY)
    order = np.argsort(-cosines).tolist()
    assert order != sorted(order)
    tei = server.post("/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True, "return_text": True})
    assert [(one["index"], one["text"]) for one in tei.json()] == [(place, TEXTS[place]) for place in order]
    np.testing.assert_allclose([one["score"] for one in tei.json()], cosines[order], atol=1e-6)
    assert tei.headers["x-compute-tokens"] == str(4 + 4 + 5 + 3)
    documents = [TEXTS[0], {"text": TEXTS[1], "title": "x"}, TEXTS[2]]
    body = {"model": "small", "query": QUERY, "documents": documents, "top_n": 2, "return_documents": True}
    for route in ("/rerank", "/v1/rerank", "/v2/rerank"):
        answer = server.post(route, body).json()
        found = [(one["index"], one["document"]["text"], one["relevance_score"]) for one in answer["results"]]
        assert found == [(place, TEXTS[place], pytest.approx(cosines[place], abs=1e-6)) for place in order[:2]]
        assert (answer["model"], answer["usage"]["total_tokens"], bool(answer["id"])) == ("small", 16, True)


def test_tokens_say_where_they_stand_in_the_bytes_of_a_text(server, small_bundle, encoder):
    texts = ["the é cat", "the cat sat on a mat the cat"]
    found = server.post("/tokenize", {"inputs": texts}).json()
    assert [len(row) for row in found] == encoder.token_counts(texts), "nothing is cut"
    for text, row in zip(texts, found, strict=True):
        assert [(one["start"], one["stop"]) for one in (row[0], row[-1])] == [(None, None)] * 2
        assert row[0]["special"] and row[0]["text"] == "[CLS]"
        for one in row[1:-1]:
            assert text.encode()[one["start"] : one["stop"]].decode() == one["text"] and not one["special"]
    bare = server.post("/tokenize", {"inputs": texts[0], "add_special_tokens": False}).json()
    assert bare == [found[0][1:-1]]
    app = create_app(Options(model=str(small_bundle), max_queue_tokens=10))
    (answer,) = asked(app, ("POST", "/tokenize", {"inputs": texts}))
    assert (answer.status_code, answer.json()["error"]) == (413, "inputs: 15 tokens; an answer may have 10")


def test_a_text_that_comes_again_is_not_computed_and_others_are(small_bundle, encoder):
    app = create_app(Options(model=str(small_bundle), cache_bytes=100_000))
    embeddings(app, TEXTS)
    for texts in (["mat", "zebra", "a dog", "the cat"], TEXTS):
        np.testing.assert_allclose(embeddings(app, texts), encoder.encode(texts), atol=1e-6)
    assert count(app, "cse_cache_hits_total") == 2 + 3
    wait_for(lambda: count(app, "cse_batch_texts_sum") == 3 + 2)  # counted when the answer may be there already
    (refused,) = asked(app, ("POST", "/v1/embeddings", {"model": "small", "input": ["mat", "bad"]}))
    assert (refused.status_code, refused.json()["error"]["message"][:8]) == (424, "input[1]")


@pytest.mark.parametrize("form", ["int8", "binary", "ubinary"])
def test_small_vectors_are_those_of_sentence_transformers_and_int8_keeps_cosines(server, encoder, form):
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    for name in ("encoding_format", "embedding_type"):
        answer = server.post("/v1/embeddings", {"model": "small", "input": TEXTS, name: form}).json()
        found = [item["embedding"] for item in answer["data"]]
        if form == "int8":
            assert (np.abs(found).max(axis=1) == 127).all()
            np.testing.assert_allclose(encoder.similarity(found, found), encoder.similarity(TEXTS, TEXTS), atol=0.01)
        else:
            assert found == quantization.quantize_embeddings(encoder.encode(TEXTS), form).tolist()


def test_each_domain_has_vectors_of_its_own_in_the_cache_until_it_changes_or_goes(small_bank, tiny_folders, tmp_path):
    bank = shutil.copytree(small_bank, tmp_path / "bank")
    app = create_app(Options(model=str(bank), cache_bytes=100_000))

    def check(*names):
        for name in names:
            (found,) = embeddings(app, ["the cat sits"], model=name)
            np.testing.assert_allclose(found, OnnxEncoder(bank).encode("the cat sits", domain=name), atol=1e-6)

    check("plain", "shared", "plain", "shared")
    assert count(app, "cse_cache_hits_total") == 2
    add_domain(bank, make_domain(make_encoder(tiny_folders["bert"], "plain", seed=77), "plain"), replace=True)
    check("plain")
    remove_domain(bank, "plain")
    (gone,) = asked(app, ("POST", "/v1/embeddings", {"model": "plain", "input": "the cat sits"}))
    assert gone.status_code == 404
    check("shared")


def test_the_longest_unused_vectors_give_way():
    cache, keys = Cache(3 * (400 + 40)), [bytes([place]) for place in range(5)]
    for key in keys:
        cache.find(keys[:1])  # the first is asked for all the while
        cache.keep(key, np.ones(10, np.float32))
    assert list(cache.find(keys)) == [0, 3, 4]


def test_a_request_is_a_span_below_that_of_its_client_and_reaches_a_collector(small_bundle, tmp_path, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(content).resource_spans:
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        with serving(small_bundle, "--otel", "--cache-bytes", 10_000, log=tmp_path / "log") as server:
            body = {"model": "small", "input": TEXTS, "encoding_format": "int8"}
            assert server.post("/v1/embeddings", body, headers=TRACED).status_code == 200
            assert server.post("/embed", {"inputs": ""}).status_code == 400
            assert server.get("/health").status_code == 200
        collector.shutdown()
    answered, refused = spans
    assert (answered.name, answered.trace_id.hex(), answered.parent_span_id.hex()) == (
        "embeddings small", TRACE, PARENT,
    )  # fmt: skip
    facts = {one.key: one.value for one in answered.attributes}
    assert facts["gen_ai.request.model"].string_value == facts["gen_ai.response.model"].string_value == "small"
    assert (facts["gen_ai.usage.input_tokens"].int_value, facts["cse.texts"].int_value) == (4 + 5 + 3, 3)
    assert all(facts[f"cse.{name}_ms"].double_value > 0 for name in ("tokenize", "queue", "compute"))
    assert (refused.name, refused.parent_span_id) == ("embeddings", b"")
    assert {one.key: one.value for one in refused.attributes}["error.type"].string_value == "400"
    assert not any(text in str(spans) for text in TEXTS[:2])
