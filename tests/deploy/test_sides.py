"""A model with a query side behind the server: ids that name a role, TEI's prompt_name, and mixed batches."""

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


@pytest.mark.parametrize("kind", ["bundle", "bank"])
def test_each_api_names_a_role(kind, tiny_folders, empty_banks, tmp_path):
    encoder = query_side(backbone_of(tiny_folders["bert"]), **PARTS["prompt, projector and map"])
    model = tmp_path / "legal"
    if kind == "bundle":
        bundle_of(encoder, model)
    else:
        shutil.copytree(empty_banks("bert"), model)
        centres = SentenceEncoder(encoder.backbone).encode(TEXTS[:1])
        add_domain(model, make_domain(encoder, "legal", centres=centres))
        add_domain(model, make_domain(make_encoder(tiny_folders["bert"], "plain"), "other"))
    lengths = {"legal:query": encoder.max_length, "legal:passage": encoder.documents.max_length}
    with serving(model, "--threads", 2, log=tmp_path / "log") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-")
        cards = {card.id: card.to_dict() for card in client.models.list()}
        assert list(cards) == [*IDS, *(["other", "auto"] if kind == "bank" else [])]

        def vectors(name, given):
            return [item.embedding for item in client.embeddings.create(model=name, input=given).data]

        for name, role in IDS.items():
            wanted = encoder.encode(TEXTS, role=role)
            np.testing.assert_allclose(vectors(name, TEXTS), wanted, atol=1e-5)
            body = {"inputs": TEXTS, "model": "legal", "prompt_name": role}
            np.testing.assert_allclose(server.post("/embed", body).json(), wanted, atol=1e-5)
        with pytest.raises(openai.NotFoundError, match="legal:quary"):
            client.embeddings.create(model="legal:quary", input=TEXTS)

        refusals = [
            ("legal", {"prompt_name": "title"}, 400, "role: 'title' is not known; one of query, passage"),
            ("legal:query", {"prompt_name": "passage"}, 400, "'passage' is not the role of model legal:query"),
        ]
        for name, length in lengths.items():
            assert cards[name]["max_length"] == length
            refusals.append((name, {"truncate": False}, 413, f"1 of 3 inputs exceed {length} tokens"))
        if kind == "bank":
            refusals.append(("other", {"prompt_name": "query"}, 400, "this model has none"))
            answer = client.embeddings.create(model="auto", input=TEXTS)
            assert [item.domain for item in answer.data] == ["legal"] * 3
            np.testing.assert_allclose([item.embedding for item in answer.data], encoder.encode(TEXTS), atol=1e-5)
        for name, more, status, said in refusals:
            answer = server.post("/embed", {"inputs": TEXTS, "model": name} | more)
            assert answer.status_code == status and said in answer.json()["error"]

        cosines = encoder.encode(TEXTS, role="passage") @ encoder.encode("a cat", role="query")
        for name in ("legal", "legal:query", *(["auto"] if kind == "bank" else [])):
            found = server.post("/rerank", {"query": "a cat", "texts": TEXTS, "model": name}).json()
            assert [one["index"] for one in found] == np.argsort(-cosines).tolist()
            np.testing.assert_allclose([one["score"] for one in found], np.sort(cosines)[::-1], atol=1e-5)
