"""A query side: queries take what was trained, everything else the bare backbone, to the bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from cse.errors import CseError
from cse.model.checkpoint import describe, identity_of, save_checkpoint
from cse.model.declared import PROMPTS
from cse.model.post import LinearMap
from cse.model.sentence_encoder import SentenceEncoder, load_bare_backbone
from tests.parts import backbone_of, new_flow, new_prompt, new_template, refusal, sentence_encoder
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


def test_the_side_is_part_of_the_identity(tiny_folders, tmp_path):
    backbone = backbone_of(tiny_folders["bert"])
    prompt = new_prompt("key_value", backbone, length=2)
    identities = []
    for side in ("both", "query"):
        (tmp_path / side).mkdir()
        save_checkpoint(SentenceEncoder(backbone, prompt, side=side), tmp_path / side)
        identities.append(identity_of(tmp_path / side))
    assert len(set(identities)) == 2


def make_templated(backbone):
    templates = [new_template("the man reads {sentence} near {mask} .", backbone)]
    return sentence_encoder(backbone, pooler="mask", templates=templates, side="query")


def mapped(backbone, post, side="query"):
    encoder = SentenceEncoder(backbone, side=side)
    encoder.post = post
    return describe(encoder)


def square(kind, width=32, dimension=32):
    return LinearMap.of(kind, np.zeros(width), np.eye(width)[:, :dimension])


REFUSED: dict[str, Any] = {
    "trained weights": (
        lambda backbone: SentenceEncoder(backbone, trained="biases", side="query"),
        "prompt.side: query keeps the backbone's weights for documents, and train.parameters is biases; set prompts, "
        "or prompt.side: both",
    ),
    "template": (
        make_templated,
        "prompt.side: query takes no template, whose words stand in one tokenizer for all texts; set both",
    ),
    "prompt among the tokens": (
        lambda backbone: SentenceEncoder(backbone, new_prompt("input", backbone, length=2), side="query"),
        "prompt.side: query takes a deep prompt, and prompt.kind is input; choose key_value",
    ),
    "projector": (
        lambda backbone: sentence_encoder(backbone, mlp="always", projector="batch_norm", side="query"),
        "prompt.side: query takes projector tanh, and pooler.projector is batch_norm",
    ),
    "pooler": (
        lambda backbone: sentence_encoder(backbone, pooler="mean", side="query"),
        "prompt.side: query pools as its documents do, by cls, and pooler.kind is mean",
    ),
    "whitening": (
        lambda backbone: mapped(backbone, square("whitening")),
        "prompt.side: query takes post.kind query_map, and whitening maps documents too",
    ),
    "flow": (
        lambda backbone: mapped(backbone, new_flow(np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32))),
        "prompt.side: query takes post.kind query_map, and flow maps documents too",
    ),
    "narrower map": (
        lambda backbone: mapped(backbone, square("query_map", dimension=8)),
        "prompt.side: query takes a map to the width of documents, 32, and this one gives 8",
    ),
    "map of both sides": (
        lambda backbone: mapped(backbone, square("query_map"), side="both"),
        "post.kind: query_map maps queries alone; set prompt.side: query",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_one_sided_is_refused(tiny_folders, case):
    make, message = REFUSED[case]
    assert refusal(make, backbone_of(tiny_folders["bert"])) == message


def test_word_vectors_have_no_query_side(tmp_path):
    (tmp_path / "words.txt").write_text("cat 0.1 0.2\ndog 0.3 0.4\n", encoding="utf-8")
    words = SentenceEncoder.load(tmp_path / "words.txt").backbone
    with pytest.raises(CseError, match=r"prompt\.side: query needs a language model, and .* holds word vectors"):
        SentenceEncoder(words, side="query")
