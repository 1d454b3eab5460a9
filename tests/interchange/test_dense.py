"""Linear layers behind the pooling, as EmbeddingGemma has them: read, trained over, exported, written back."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from cse.errors import CseError
from cse.losses.label_proxies import LabelProxies
from cse.losses.nli_softmax import NliSoftmax
from cse.losses.nt_xent import MomentumQueue
from cse.losses.self_guided import SelfGuided
from cse.model.checkpoint import save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings.objective import LabelProxiesSettings, NliSoftmaxSettings, NtXentSettings, SelfGuidedSettings
from tests.export.exports import export
from tests.export.systems import SENTENCES
from tests.model.families import make_family_folder
from tests.parts import backbone_of, new_prompt, sentence_encoder, slopes

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


def test_the_gradient_of_a_prompt_passes_through_them(prompted):
    ids_BL = torch.tensor([[2, 8, 9, 3], [2, 10, 3, 0]])
    mask_BL = (ids_BL > 0).long()

    def loss():
        return prompted.embed(ids_BL, mask_BL, prompted.constants()).square().sum()

    prompted.double()
    (weight,) = prompted.prompt.parameters()
    by_autograd, by_differences = slopes(loss, weight, 1e-3)
    prompted.float()
    assert by_autograd == pytest.approx(by_differences, rel=1e-3)


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


@pytest.mark.parametrize("projector", ["tanh", "batch_norm"])
def test_what_reads_vectors_is_as_wide_as_they_are(folder, projector):
    backbone = backbone_of(folder)
    encoder = sentence_encoder(backbone, mlp="always", projector=projector)
    proxies = LabelProxies(encoder, LabelProxiesSettings(), 5)
    queue = MomentumQueue(encoder, NtXentSettings(queue=4))
    assert proxies.proxies.shape == (5, 48)
    assert NliSoftmax(encoder, NliSoftmaxSettings()).classify.in_features == 3 * 48
    assert queue.vectors.shape == (4, 48)
    assert encoder.project(torch.ones(2, 48)).shape == (2, 48)
    with pytest.raises(CseError, match=r"states of 32 numbers, and .* gives 48 behind its pooling"):
        SelfGuided(encoder, SelfGuidedSettings())
