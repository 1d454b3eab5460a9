"""What a sentence-transformers folder declares of a model, and what the encoder makes of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cse.errors import CseError
from cse.model.checkpoint import save_checkpoint
from cse.model.declared import LENGTH, MODULES, PROMPTS, Declared, declared_by
from cse.model.sentence_encoder import SentenceEncoder
from tests.parts import backbone_of, new_prompt, sentence_encoder
from tests.tiny import make_backbone_folder

KINDS = "sentence_transformers.models."


def declare(folder, *, modules=("Transformer", "Pooling", "Normalize"), pooling=None, prompts=None, length=None):
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [
        {"idx": i, "name": str(i), "path": paths.get(m, f"{i}_{m}"), "type": KINDS + m} for i, m in enumerate(modules)
    ]
    (folder / MODULES).write_text(json.dumps(listed))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if prompts is not None:
        (folder / PROMPTS).write_text(json.dumps({"prompts": prompts, "default_prompt_name": None}))
    if length is not None:
        (folder / LENGTH).write_text(json.dumps({"max_seq_length": length}))
    return folder


def test_everything_is_read(tmp_path):
    modes = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    folder = declare(tmp_path, pooling=modes, prompts={"query": "query: ", "document": ""}, length=20)
    (folder / "config.json").write_text(json.dumps({"matryoshka_dimensions": [16, 8]}))
    assert declared_by(folder) == Declared("last", 20, {"query": "query: "}, (8, 16))
    assert declared_by(folder, "cls").pooling == "cls"


@pytest.fixture
def folder(tmp_path):
    made = make_backbone_folder(tmp_path / "model", "bert", pooling="mean")
    declare(made, prompts={"query": "the old house ", "both": "a "}, length=12)
    return made


def test_a_role_puts_its_text_before_the_sentence(folder):
    encoder = SentenceEncoder.load(folder)
    sentences = ["red bird", "", "a small dog sleeps"]
    written = encoder.encode(["the old house " + text for text in sentences])
    np.testing.assert_array_equal(encoder.encode(sentences, role="query"), written)
    alone = encoder.encode("the old house " + sentences[0])
    np.testing.assert_array_equal(encoder.encode(sentences[0], role="query"), alone)
    assert np.abs(written - encoder.encode(sentences)).max() > 0.01
    with pytest.raises(CseError, match="role: 'quer' is not known; one of query, both; did you mean 'query'"):
        encoder.encode(sentences, role="quer")


def test_the_declared_length_cuts(folder):
    encoder = SentenceEncoder.load(folder)
    assert encoder.max_length == 12
    np.testing.assert_array_equal(encoder.encode("red " * 30), encoder.encode("red " * 10))
    prompted = sentence_encoder(
        backbone_of(folder), new_prompt("key_value", backbone_of(folder), length=30), position_shift=True
    )
    assert prompted.max_length == 10, "fewer positions are left than the folder declares"


def test_a_checkpoint_keeps_its_use_whatever_the_folder_says_later(folder, tmp_path):
    backbone = backbone_of(folder)
    use = Declared(None, 9, {"query": "red "}, (8, 16))
    encoder = sentence_encoder(backbone, new_prompt("key_value", backbone, length=2, init_std=0.7), use=use)
    (tmp_path / "checkpoint").mkdir()
    save_checkpoint(encoder, tmp_path / "checkpoint")
    (folder / LENGTH).write_text(json.dumps({"max_seq_length": 5}))
    found = SentenceEncoder.load(tmp_path / "checkpoint")
    assert (found.max_length, found.texts, found.widths) == (9, {"query": "red "}, (8, 16))
    np.testing.assert_array_equal(found.encode("a dog", role="query"), encoder.encode("a dog", role="query"))


def test_vectors_are_cut_before_they_are_scaled(folder):
    encoder = sentence_encoder(backbone_of(folder), use=Declared(None, None, {}, (8, 16)), pooler="mean")
    whole = encoder.encode(["red bird", "a dog"], normalize=False)
    cut = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.encode(["red bird", "a dog"], dimensions=8), cut, atol=1e-7)
    assert encoder.encode("red bird", dimensions=32).shape == (32,)
    with pytest.raises(CseError, match="dimensions: 9; this model gives 8, 16, 32"):
        encoder.encode("red bird", dimensions=9)
    with pytest.raises(CseError, match="this model gives 32, and its vectors cannot be cut"):
        SentenceEncoder.load(folder).encode("red bird", dimensions=8)
