"""``POST /predict``: the classifier of a bundle, in the form of Text Embeddings Inference."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from cse.artifact import sha256
from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bundle import read_manifest
from cse.runtime.classifier import CLASSIFIER, Classifier, ClassifierFacts
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.deploy.servers import serving

TEXTS = ["the cat sat", "a dog on mat"]
LABELS = ["cats", "dogs", "none"]


@pytest.fixture(scope="module")
def classifying(small_bundle, tmp_path_factory):
    """Return the folder of a bundle with a classifier of three labels."""
    folder = shutil.copytree(small_bundle, tmp_path_factory.mktemp("classifying") / "intents")
    vectors = OnnxEncoder(folder, provider="cpu").encode(TEXTS, normalize=True)
    weight = np.stack([*(5 * vectors), np.zeros_like(vectors[0])])
    Classifier(ClassifierFacts(LABELS, names=False, threshold=0.4), weight, np.zeros(3, np.float32)).write(folder)
    manifest = read_manifest(folder)
    replace(manifest, files=manifest.files | {CLASSIFIER: sha256(folder / CLASSIFIER)}).write(folder)
    return folder


@pytest.fixture(scope="module")
def predicting(classifying, tmp_path_factory):
    with serving(classifying, "--threads", 2, log=tmp_path_factory.mktemp("log") / "predict") as found:
        yield found


def test_texts_get_all_labels_the_likeliest_first(predicting, classifying):
    encoder = OnnxEncoder(classifying, provider="cpu")
    expected = encoder.classifier.probabilities(encoder.encode(TEXTS, normalize=True))
    for inputs in (TEXTS, [[text] for text in TEXTS]):
        found = predicting.post("/predict", {"inputs": inputs}).json()
        for row, told in zip(expected, found, strict=True):
            assert [one["label"] for one in told] == [LABELS[place] for place in np.argsort(-row)]
            np.testing.assert_allclose([one["score"] for one in told], np.sort(row)[::-1], atol=1e-6)
    alone = predicting.post("/predict", {"inputs": TEXTS[0]}).json()
    assert alone == [one | {"score": pytest.approx(one["score"], rel=1e-4)} for one in found[0]]
    raw = predicting.post("/predict", {"inputs": TEXTS[1], "raw_scores": True}).json()
    scores = np.exp([one["score"] for one in raw])
    np.testing.assert_allclose(scores / scores.sum(), [one["score"] for one in found[1]], atol=1e-6)
    assert predicting.get("/info").json()["classifier"]["threshold"] == 0.4


@pytest.mark.parametrize("inputs", [[["a", "b"]], [], "", [["a"], "b"], [[1, 2]]])
def test_pairs_and_token_ids_are_refused(predicting, inputs):
    answer = predicting.post("/predict", {"inputs": inputs})
    assert answer.status_code in (400, 422) and answer.json()["error"].startswith("inputs")


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


def test_a_model_without_labels_says_so(server):
    answer = server.post("/predict", {"inputs": "a dog"})
    assert answer.status_code == 424 and "no classifier" in answer.json()["error"]
