"""A query side: queries take what was trained, everything else the bare backbone, to the bit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cse.model.checkpoint import save_checkpoint
from cse.model.declared import PROMPTS
from cse.model.sentence_encoder import SentenceEncoder, load_bare_backbone
from tests.parts import backbone_of, sentence_encoder
from tests.sides import PARTS, query_side
from tests.tiny import make_backbone_folder

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
    folder = make_backbone_folder(tmp_path / "e5", "bert")
    texts = {"query": "the query ", "passage": "the book "}
    (folder / PROMPTS).write_text(json.dumps({"prompts": texts}), encoding="utf-8")
    encoder, bare = query_side(backbone_of(folder), **PARTS["map"]), SentenceEncoder.load(folder)
    assert encoder.texts == texts
    for role in (None, "passage"):
        np.testing.assert_array_equal(encoder.encode(SENTENCES, role=role), bare.encode(SENTENCES, role=role))
    queries = bare.encode(SENTENCES, normalize=False, role="query") @ encoder.post.matrix.numpy()
    np.testing.assert_allclose(encoder.encode(SENTENCES, normalize=False, role="query"), queries, atol=1e-5)
