"""What services of today have: ranked texts, tokens, small vectors."""

from __future__ import annotations

import numpy as np
import pytest

from cse.runtime.onnx_encoder import OnnxEncoder
from deploy.server.app import create_app
from deploy.server.options import Options
from tests.deploy.servers import asked

QUERY, TEXTS = "the cat", ["a dog", "the cat sat", "mat"]


@pytest.fixture(scope="module")
def encoder(small_bundle):
    return OnnxEncoder(small_bundle, provider="cpu")


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
