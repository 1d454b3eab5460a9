"""Linear layers behind the pooling, as EmbeddingGemma has them: read, trained over, exported, written back."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from cse.errors import CseError
from cse.model.checkpoint import save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.exports import export
from tests.export.systems import SENTENCES
from tests.model.families import make_family_folder
from tests.parts import backbone_of, new_prompt, sentence_encoder

pytest.importorskip("sentence_transformers")
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from cse.interchange.sentence_transformers import export_sentence_transformers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Gemma 3 that reads both ways, a mean, and two layers: four times as wide, then another width than it had."""
    place = tmp_path_factory.mktemp("dense")
    family = make_family_folder(place / "family", "gemma3, both ways")
    bare = sentence_encoder(backbone_of(family), pooler="mean")
    export_sentence_transformers(bare, place / "bare", SENTENCES, normalize=False, tolerance=1e-5)
    torch.manual_seed(0)
    layers = [
        Dense(32, 128, bias=False, activation_function=torch.nn.Identity()),
        Dense(128, 48, bias=True, activation_function=torch.nn.Tanh()),
        Normalize(),
    ]
    modules = [*SentenceTransformer(str(place / "bare"), device="cpu"), *layers]
    SentenceTransformer(modules=modules, device="cpu").save(str(place / "model"), create_model_card=False)
    return place / "model"


@pytest.fixture(scope="module")
def prompted(folder):
    backbone = backbone_of(folder)
    return sentence_encoder(backbone, new_prompt("key_value", backbone, length=3, init_std=0.7))


def test_vectors_are_those_of_sentence_transformers(folder):
    theirs = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    assert theirs.shape[1] == 48
    np.testing.assert_allclose(SentenceEncoder.load(folder).encode(SENTENCES), theirs, atol=1e-5)


def test_checkpoint_bundle_and_folder_give_the_same_vectors(prompted, tmp_path):
    vectors = prompted.encode(SENTENCES)
    assert np.abs(vectors - SentenceEncoder(prompted.backbone).encode(SENTENCES)).max() > 0.01
    (tmp_path / "checkpoint").mkdir()
    save_checkpoint(prompted, tmp_path / "checkpoint")
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path / "checkpoint").encode(SENTENCES), vectors)
    export(prompted, tmp_path / "bundle")
    np.testing.assert_allclose(OnnxEncoder(tmp_path / "bundle", provider="cpu").encode(SENTENCES), vectors, atol=1e-5)
    export_sentence_transformers(prompted, tmp_path / "folder", SENTENCES, normalize=True, tolerance=1e-5)
    theirs = SentenceTransformer(str(tmp_path / "folder"), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(theirs.encode(SENTENCES), vectors, atol=1e-5)
    kinds = [type(module).__name__ for module in theirs]
    assert kinds == ["PromptedTransformer", "Pooling", "Dense", "Dense", "Normalize"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"activation_function": "my.Swish"}, "has the activation my.Swish"),
        ({"module_input_name": "token_embeddings"}, "has another input"),
    ],
)
def test_a_layer_of_another_kind_is_refused(folder, tmp_path, changed, message):
    copied = shutil.copytree(folder, tmp_path / "model")
    config = copied / "2_Dense/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    with pytest.raises(CseError, match=f"2_Dense {message}; to use the transformer alone"):
        SentenceEncoder.load(copied)
