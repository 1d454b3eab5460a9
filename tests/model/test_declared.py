"""What a sentence-transformers folder declares, and a query side: which text and which weights a text is read with."""

import json

import numpy as np
import pytest

from cse.model.checkpoint import save_checkpoint
from cse.model.declared import LENGTH, MODULES, PROMPTS, Declared, declared_by
from cse.model.sentence_encoder import SentenceEncoder, load_bare_backbone
from tests.parts import backbone_of, prompted, refusal, sentence_encoder
from tests.sides import PARTS, query_side
from tests.tiny import make_backbone_folder


def declare(folder, *, modules=("Transformer", "Pooling", "Normalize"), pooling=None, prompts=None, length=None):
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name, content in {
        MODULES: [
            {"path": paths.get(m, f"{i}_{m}"), "type": f"sentence_transformers.models.{m}"}
            for i, m in enumerate(modules)
        ],
        "1_Pooling/config.json": pooling,
        PROMPTS: prompts and {"prompts": prompts, "default_prompt_name": None},
        LENGTH: length and {"max_seq_length": length},
    }.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
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
    said = refusal(encoder.encode, sentences, role="quer")
    assert said.startswith("role: 'quer' is not known; one of query, both; did you mean 'query'")


def test_the_declared_length_cuts(folder):
    encoder = SentenceEncoder.load(folder)
    assert encoder.max_length == 12
    np.testing.assert_array_equal(encoder.encode("red " * 30), encoder.encode("red " * 10))
    behind = prompted(backbone_of(folder), length=30, position_shift=True)
    assert behind.max_length == 10, "fewer positions are left than the folder declares"


def test_a_checkpoint_keeps_its_use_whatever_the_folder_says_later(folder, tmp_path):
    backbone = backbone_of(folder)
    use = Declared(None, 9, {"query": "red "}, (8, 16))
    encoder = prompted(backbone, length=2, use=use)
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
    assert "dimensions: 9; this model gives 8, 16, 32" in refusal(encoder.encode, "red bird", dimensions=9)
    said = refusal(SentenceEncoder.load(folder).encode, "red bird", dimensions=8)
    assert "this model gives 32, and its vectors cannot be cut" in said


SENTENCES = ["the cat sits on the mat", "a dog", "", "two small birds eat red apple bread near the old river " * 4]


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("parts", PARTS)
def test_documents_are_the_backbones_and_queries_are_not(tiny_folders, family, parts, tmp_path):
    folder = tiny_folders[family]
    made = query_side(backbone_of(folder), **PARTS[parts])
    save_checkpoint(made, tmp_path)
    loaded, bare = SentenceEncoder.load(tmp_path), SentenceEncoder.load(folder)
    for encoder in (made, loaded):
        assert (encoder.side, encoder.texts) == ("query", {"query": "", "passage": ""})
        for role in (None, "passage"):
            np.testing.assert_array_equal(encoder.encode(SENTENCES, role=role), bare.encode(SENTENCES))
        queries = encoder.encode(SENTENCES, role="query")
        assert np.abs(queries - bare.encode(SENTENCES)).max(axis=1).min() > 1e-3
        np.testing.assert_array_equal(queries, made.encode(SENTENCES, role="query"))
    np.testing.assert_array_equal(load_bare_backbone(tmp_path).encode(SENTENCES), bare.encode(SENTENCES))
    assert loaded.side_of("passage").max_length == bare.max_length
    assert not [name for name in made.trainable() if name.startswith(("backbone.", "documents."))]
    assert (tmp_path / "weights.safetensors").stat().st_size < 40_000, "only the query side is stored"


def test_queries_are_those_of_the_same_parts_on_both_sides(tiny_folders):
    """Beside a model of both sides with the same weights, and a product in numpy for the map."""
    one = query_side(backbone_of(tiny_folders["bert"]), **PARTS["prompt, projector and map"])
    matrix = one.post.matrix.numpy().astype(np.float64)
    both = sentence_encoder(one.backbone, one.prompt, cls=True, mlp="always")
    both.load_state_dict({name: value for name, value in one.state_dict().items() if name in both.state_dict()})
    expected = both.encode(SENTENCES, normalize=False) @ matrix
    np.testing.assert_allclose(one.encode(SENTENCES, normalize=False, role="query"), expected, atol=1e-5)


def test_texts_of_the_backbone_stay(tmp_path):
    texts = {"query": "the query ", "passage": "the book "}
    folder = declare(make_backbone_folder(tmp_path / "e5", "bert"), prompts=texts)
    encoder, bare = query_side(backbone_of(folder), **PARTS["map"]), SentenceEncoder.load(folder)
    assert encoder.texts == texts
    for role in (None, "passage"):
        np.testing.assert_array_equal(encoder.encode(SENTENCES, role=role), bare.encode(SENTENCES, role=role))
    queries = bare.encode(SENTENCES, normalize=False, role="query") @ encoder.post.matrix.numpy()
    np.testing.assert_allclose(encoder.encode(SENTENCES, normalize=False, role="query"), queries, atol=1e-5)
