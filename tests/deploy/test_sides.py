"""A model with a query side behind the server: ids that name a role, TEI's prompt_name, and mixed batches."""

from __future__ import annotations

import shutil

import numpy as np
import openai
import pytest

from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.model.sentence_encoder import SentenceEncoder
from tests.deploy.servers import serving
from tests.export.banks import make_encoder
from tests.export.exports import bundle_of
from tests.parts import backbone_of
from tests.sides import PARTS, query_side

TEXTS = ["the cat sits on the mat", "a dog", "two small birds eat red apple bread near the old river " * 4]
IDS = {"legal": None, "legal:query": "query", "legal:passage": "passage"}


@pytest.fixture(scope="module")
def encoder(tiny_folders):
    backbone = backbone_of(tiny_folders["bert"])
    return query_side(backbone, **PARTS["prompt, projector and map"])


@pytest.fixture(scope="module", params=["bundle", "bank"])
def service(request, encoder, tiny_folders, empty_banks, tmp_path_factory):
    root = tmp_path_factory.mktemp("sides")
    model = root / "legal"
    if request.param == "bundle":
        bundle_of(encoder, model)
    else:
        shutil.copytree(empty_banks("bert"), model)
        centres = SentenceEncoder(encoder.backbone).encode(TEXTS[:1])
        add_domain(model, make_domain(encoder, "legal", centres=centres))
        add_domain(model, make_domain(make_encoder(tiny_folders["bert"], "plain"), "other"))
    with serving(model, "--threads", 2, "--token-ids", log=root / "log") as found:
        yield found, request.param


def test_the_openai_client_names_a_role_by_the_id(service, encoder):
    server, kind = service
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-")
    cards = {card.id: card.to_dict() for card in client.models.list()}
    assert list(cards) == [*IDS, *(["other", "auto"] if kind == "bank" else [])]
    assert cards["legal:query"]["max_length"] == encoder.max_length
    assert cards["legal:passage"]["max_length"] == cards["legal"]["max_length"] == encoder.documents.max_length
    for model, role in IDS.items():
        answer = client.embeddings.create(model=model, input=TEXTS)
        found = np.array([item.embedding for item in answer.data])
        np.testing.assert_allclose(found, encoder.encode(TEXTS, role=role), atol=1e-5)
        assert answer.model == model
    with pytest.raises(openai.NotFoundError, match="legal:quary"):
        client.embeddings.create(model="legal:quary", input=TEXTS)


def test_tei_names_a_role_by_prompt_name(service, encoder):
    server, _ = service
    for role in ("query", "passage", None):
        body = {"inputs": TEXTS, "truncate": True, "model": "legal"} | ({"prompt_name": role} if role else {})
        found = server.post("/embed", body).json()
        np.testing.assert_allclose(found, encoder.encode(TEXTS, role=role), atol=1e-5)
    refused = server.post("/embed", {"inputs": TEXTS, "model": "legal", "prompt_name": "title"})
    assert refused.status_code == 400
    assert "role: 'title' is not known; one of query, passage" in refused.json()["error"]
    refused = server.post("/embed", {"inputs": TEXTS, "model": "legal:query", "prompt_name": "passage"})
    assert refused.status_code == 400
    assert "prompt_name: 'passage' is not the role of model legal:query" in refused.json()["error"]


def test_each_side_says_when_a_text_exceeds_its_own_length(service, encoder):
    server, _ = service
    for model, side in (("legal:query", encoder), ("legal:passage", encoder.documents)):
        refused = server.post("/embed", {"inputs": TEXTS, "model": model, "truncate": False})
        assert refused.status_code == 413
        assert f"1 of 3 inputs exceed {side.max_length} tokens" in refused.json()["error"]


def test_token_ids_take_either_side(service, encoder):
    server, _ = service
    rows = [encoder.backbone.tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS[:2]]
    for model, role in IDS.items():
        answer = server.post("/v1/embeddings", {"model": model, "input": rows}).json()
        found = [item["embedding"] for item in answer["data"]]
        np.testing.assert_allclose(found, encoder.encode(TEXTS[:2], role=role), atol=1e-5)


def test_the_nearest_domain_gives_its_documents_side(service, encoder):
    server, kind = service
    if kind == "bundle":
        pytest.skip("a bundle has no auto")
    answer = server.post("/v1/embeddings", {"model": "auto", "input": TEXTS}).json()
    assert [item["domain"] for item in answer["data"]] == ["legal"] * 3
    np.testing.assert_allclose([item["embedding"] for item in answer["data"]], encoder.encode(TEXTS), atol=1e-5)
    refused = server.post("/embed", {"inputs": TEXTS, "model": "other", "prompt_name": "query"})
    assert refused.status_code == 400
    assert "this model has none" in refused.json()["error"]


def test_a_query_is_ranked_with_the_texts_by_both_sides(service, encoder):
    """With `auto`, on the side of the query's domain."""
    server, kind = service
    wanted = encoder.encode(TEXTS, role="passage") @ encoder.encode("a cat", role="query")
    for model in ("legal", "legal:query", *(["auto"] if kind == "bank" else [])):
        answer = server.post("/rerank", {"query": "a cat", "texts": TEXTS, "model": model}).json()
        assert [one["index"] for one in answer] == np.argsort(-wanted).tolist()
        np.testing.assert_allclose([one["score"] for one in answer], np.sort(wanted)[::-1], atol=1e-5)
