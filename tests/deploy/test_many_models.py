"""Models behind the server: many domains by pages, keys that open some, roles of a query side, and a classifier."""

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import openai
import pytest
from click.testing import CliRunner

from cse.artifact import sha256
from cse.export.bundle import make_domain
from cse.export.domains import add_domain, remove_domain
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bundle import read_manifest
from cse.runtime.classifier import CLASSIFIER, Classifier, ClassifierFacts
from cse.runtime.onnx_encoder import OnnxEncoder
from deploy.server import keys
from deploy.server.app import create_app
from deploy.server.command import serve_key
from deploy.server.keys import digest, read_keys
from deploy.server.options import Options
from tests.deploy.servers import asked, serving
from tests.export.banks import KINDS, make_encoder
from tests.export.exports import bundle_of
from tests.pages.blocks import run_by
from tests.parts import backbone_of, refusal
from tests.sides import PARTS, query_side

TEXT = "the cat sits on the mat"


def listed(app, query="", key=None):
    (answer,) = asked(app, ("GET", f"/v1/models{query}", None), key=key)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_pages_together_are_the_list_also_behind_a_domain_that_is_gone_and_past_a_damaged_one(small_bank, tmp_path):
    bank = shutil.copytree(small_bank, tmp_path / "bank")
    app, found, page = create_app(Options(model=str(bank))), [], {"last_id": "", "has_more": True}
    while page["has_more"]:
        page = listed(app, f"?limit=4&after={page['last_id']}")
        found += [card["id"] for card in page["data"]]
    assert found == [card["id"] for card in listed(app)["data"]] == sorted(KINDS)
    remove_domain(bank, found[1])
    (bank / "domains" / f"{found[2]}.safetensors").write_bytes(b"damaged")
    empty = listed(app, f"?limit=1&after={found[1]}")
    assert (empty["data"], empty["has_more"]) == ([], True)
    assert [card["id"] for card in listed(app, f"?after={empty['last_id']}")["data"]] == found[3:]


def test_what_is_no_page_and_a_domain_larger_than_the_memory_are_refused(small_bank):
    app = create_app(Options(model=str(small_bank), max_domain_bytes=100))
    for query, said in (
        ("?after=../x", "after: '../x' is not the id of a model; send the last_id of a page"),
        ("?after=%00", "after: "),
        ("?limit=10001", "limit: Input should be less than or equal to 10000"),
    ):
        (answer,) = asked(app, ("GET", f"/v1/models{query}", None))
        assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(said)
    (answer,) = asked(app, ("POST", "/embed", {"inputs": TEXT, "model": "plain"}))
    assert (answer.status_code, listed(app)["data"]) == (503, [])


def test_a_key_opens_what_its_line_names(small_bank, tmp_path):
    lines = "{some} models=plain,hidden,nowhere a team\n{one} models=plain\n{all} models of all\n"
    (tmp_path / "keys").write_text(lines.format(**{name: digest(name) for name in ("some", "one", "all")}))
    app = create_app(Options(model=str(small_bank), api_keys=tmp_path / "keys"))
    for key, model, status, code in ASKED:
        (answer,) = asked(app, ("POST", "/v1/embeddings", {"model": model, "input": TEXT}), key=key)
        assert (answer.status_code, answer.json().get("error", {}).get("code")) == (status, code)
        assert "own-cls" not in answer.text, "a key does not learn what else there is"
    bodies = {"/embed": {"inputs": TEXT}, "/similarity": {"inputs": {"source_sentence": TEXT, "sentences": ["a"]}}}
    for route, body in bodies.items():
        requests = [("POST", route, body | model) for model in ({"model": "plain"}, {"model": "shared"}, {})]
        for key, statuses in (("some", [200, 403, 400]), ("one", [200, 403, 200])):
            assert [one.status_code for one in asked(app, *requests, key=key)] == statuses
    found = {key: [card["id"] for card in listed(app, key=key)["data"]] for key in ("some", "one", "all")}
    assert found == {"some": ["hidden", "plain"], "one": ["plain"], "all": sorted(KINDS)}
    assert [card["id"] for card in listed(app, "?limit=1&after=hidden", key="some")["data"]] == ["plain"]


ASKED = [
    ("all", "shared", 200, None),
    ("some", "plain", 200, None),
    ("some", "shared", 403, "model_not_allowed"),
    ("some", "no such model", 403, "model_not_allowed"),
    ("some", "auto", 403, "model_not_allowed"),
    ("some", "shared:plain", 403, "model_not_allowed"),
    ("some", "plain:shared", 404, "model_not_found"),
    ("some", "nowhere", 404, "model_not_found"),
    ("none", "plain", 401, "invalid_api_key"),
]


def test_the_command_writes_lines_and_others_are_refused(tmp_path):
    made, file = CliRunner().invoke(serve_key, ["a team", "--models", "plain, hidden"]), tmp_path / "keys"
    file.write_text(made.stdout)
    assert read_keys(file) == {digest(made.stderr.strip()): keys.Key(frozenset({"plain", "hidden"}), 1)}
    assert made.stdout.endswith(" models=plain,hidden a team\n")
    for line, said in (
        ("{0} models=a,,b team", "keys:2: 'models=a,,b' leaves out a name; write models=NAME,NAME"),
        ("{1} models=a", "keys:2: the key of line 1 again; name all its models there"),
        ("{0}models=a", "keys:2: not the SHA-256 of a key"),
    ):
        file.write_text(f"{digest('1')}\n{line.format(digest('0'), digest('1'))}\n")
        assert said in refusal(read_keys, file)


# ---- roles of a query side ------------------------------------------------------------------------------------------

SAID = ["the cat sits on the mat", "a dog", "two small birds eat red apple bread near the old river " * 4]
IDS = {"legal": None, "legal:query": "query", "legal:passage": "passage"}


@pytest.mark.parametrize("kind", ["bundle", "bank"])
def test_each_api_names_a_role(kind, tiny_folders, empty_banks, tmp_path):
    encoder = query_side(backbone_of(tiny_folders["bert"]), **PARTS["prompt, projector and map"])
    model = tmp_path / "legal"
    if kind == "bundle":
        bundle_of(encoder, model)
    else:
        shutil.copytree(empty_banks("bert"), model)
        centres = SentenceEncoder(encoder.backbone).encode(SAID[:1])
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
            wanted = encoder.encode(SAID, role=role)
            np.testing.assert_allclose(vectors(name, SAID), wanted, atol=1e-5)
            body = {"inputs": SAID, "model": "legal", "prompt_name": role}
            np.testing.assert_allclose(server.post("/embed", body).json(), wanted, atol=1e-5)
        with pytest.raises(openai.NotFoundError, match="legal:quary"):
            client.embeddings.create(model="legal:quary", input=SAID)

        refusals = [
            ("legal", {"prompt_name": "title"}, 400, "role: 'title' is not known; one of query, passage"),
            ("legal:query", {"prompt_name": "passage"}, 400, "'passage' is not the role of model legal:query"),
        ]
        for name, length in lengths.items():
            assert cards[name]["max_length"] == length
            refusals.append((name, {"truncate": False}, 413, f"1 of 3 inputs exceed {length} tokens"))
        if kind == "bank":
            refusals.append(("other", {"prompt_name": "query"}, 400, "this model has none"))
            answer = client.embeddings.create(model="auto", input=SAID)
            assert [item.domain for item in answer.data] == ["legal"] * 3
            np.testing.assert_allclose([item.embedding for item in answer.data], encoder.encode(SAID), atol=1e-5)
        for name, more, status, said in refusals:
            answer = server.post("/embed", {"inputs": SAID, "model": name} | more)
            assert answer.status_code == status and said in answer.json()["error"]

        cosines = encoder.encode(SAID, role="passage") @ encoder.encode("a cat", role="query")
        for name in ("legal", "legal:query", *(["auto"] if kind == "bank" else [])):
            found = server.post("/rerank", {"query": "a cat", "texts": SAID, "model": name}).json()
            assert [one["index"] for one in found] == np.argsort(-cosines).tolist()
            np.testing.assert_allclose([one["score"] for one in found], np.sort(cosines)[::-1], atol=1e-5)


# ---- a classifier ---------------------------------------------------------------------------------------------------

TEXTS = ["the cat sat", "a dog on mat"]
(CURL,) = (block.text for block in run_by("docs/serve.md", __file__))
LABELS = ["cats", "dogs", "none"]


@pytest.fixture(scope="module")
def classifying(small_bundle, tmp_path_factory):
    """Return the folder of a bundle with a classifier of three labels."""
    folder = shutil.copytree(small_bundle, tmp_path_factory.mktemp("classifying") / "intents")
    vectors = OnnxEncoder(folder, provider="cpu").encode(TEXTS, normalize=True)
    weight = np.stack([*(5 * vectors), np.zeros_like(vectors[0])])
    Classifier(ClassifierFacts(LABELS, names=False, threshold=0.6), weight, np.zeros(3, np.float32)).write(folder)
    manifest = read_manifest(folder)
    replace(manifest, files=manifest.files | {CLASSIFIER: sha256(folder / CLASSIFIER)}).write(folder)
    return folder


def test_texts_get_all_labels_the_likeliest_first(classifying, tmp_path):
    encoder = OnnxEncoder(classifying, provider="cpu")
    expected = encoder.classifier.probabilities(encoder.encode(TEXTS, normalize=True))
    with serving(classifying, "--threads", 2, log=tmp_path / "log") as server:
        rows, lists, raw, alone = (
            server.post("/predict", body).json()
            for body in (
                {"inputs": TEXTS},
                {"inputs": [[text] for text in TEXTS]},
                {"inputs": TEXTS, "raw_scores": True},
                {"inputs": TEXTS[0]},
            )
        )
        told = encoder.classify(["Where is my card?", "the cat sat"])
        command = ["bash", "-c", CURL.replace("http://127.0.0.1:8080", server.url)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        head, _, body = found.stdout.replace("\r", "").partition("\n\n")
        assert "x-threshold: 0.6" in head and f"x-unknown: {sum(not one.known for one in told)}" in head
        assert [row[0]["score"] >= 0.6 for row in json.loads(body)] == [one.known for one in told]
        assert {one.known for one in told} == {True, False}, told
        assert server.post("/predict", {"inputs": ["N/A", "?!"]}).headers["x-unknown"] == "2", "they say nothing"
        assert not any(one.known for one in encoder.classify(["N/A", "?!"]))
    for wanted, row, in_list, logits in zip(expected, rows, lists, raw, strict=True):
        assert [one["label"] for one in row] == [LABELS[place] for place in np.argsort(-wanted)]
        for found in (row, in_list):
            np.testing.assert_allclose([one["score"] for one in found], np.sort(wanted)[::-1], atol=1e-6)
        scores = np.exp([one["score"] for one in logits])
        np.testing.assert_allclose(scores / scores.sum(), np.sort(wanted)[::-1], atol=1e-6)
    assert [one["label"] for one in alone] == [one["label"] for one in rows[0]]


def test_a_domain_of_a_bank_has_its_own_labels(classifying, tiny_folders, empty_banks, tmp_path):
    bank = shutil.copytree(empty_banks("bert"), tmp_path / "bank")
    bare = SentenceEncoder.load(tiny_folders["bert"])
    vectors = bare.encode(TEXTS, normalize=True)
    told = Classifier(ClassifierFacts(["meow", "woof"], names=False), 5 * vectors, np.zeros(2, np.float32))
    add_domain(bank, make_domain(bare, "pets").classifying(told))
    add_domain(bank, make_domain(bare, "plain"))
    with serving(bank, "--threads", 1, log=tmp_path / "log") as server:
        found = server.post("/predict", {"inputs": TEXTS, "model": "pets"}).json()
        assert [row[0]["label"] for row in found] == ["meow", "woof"]
        answer = server.post("/predict", {"inputs": TEXTS, "model": "plain"})
        assert answer.status_code == 424 and "no classifier" in answer.json()["error"]
