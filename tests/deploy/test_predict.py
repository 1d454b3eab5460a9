"""``POST /predict``: the classifier of a bundle, in the form of Text Embeddings Inference."""

import json
import shutil
import subprocess
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
from tests.pages.blocks import run_by

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
