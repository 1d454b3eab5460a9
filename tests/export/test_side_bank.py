"""Domains of a bank with query sides: queries through their own prompts and maps, documents shared by all of them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cse.errors import CseError
from cse.export.as_domain import make_domain
from cse.export.bank import create_bank
from cse.export.domains import add_domain
from cse.export.parity import check_parity
from cse.model.backbone import Backbone
from cse.model.declared import PROMPTS
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.banks import check_mixed, make_encoder
from tests.export.exports import bundle_of
from tests.export.systems import SENTENCES
from tests.parts import backbone_of
from tests.sides import PARTS, query_side
from tests.tiny import make_backbone_folder

TEXTS = [*SENTENCES, "two small birds eat red apple bread near the old river " * 5]


@pytest.fixture(scope="module")
def backbone(tiny_folders) -> Backbone:
    return backbone_of(tiny_folders["bert"])


@pytest.fixture(scope="module")
def banked(backbone, tiny_folders, empty_banks, tmp_path_factory):
    """A bank with every kind of query side and a domain of both sides, and their encoders; do not change it."""
    folder = shutil.copytree(empty_banks("bert"), tmp_path_factory.mktemp("bank") / "bank")
    encoders = {name.replace(" ", "-").replace(",", ""): query_side(backbone, **parts) for name, parts in PARTS.items()}
    encoders["both"] = make_encoder(tiny_folders["bert"], "plain")
    for name, encoder in encoders.items():
        centres = SentenceEncoder(backbone).encode(TEXTS[:1]) if name == "prompt" else None
        add_domain(folder, make_domain(encoder, name, centres=centres))
    return folder, encoders


@pytest.fixture(scope="module")
def opened(banked):
    return OnnxEncoder(banked[0], provider="cpu")


@pytest.mark.parametrize("role", ["query", "passage", None])
def test_each_domain_gives_its_encoders_sides_in_mixed_batches(banked, role):
    encoders = {name: encoder for name, encoder in banked[1].items() if role is None or name != "both"}
    check_mixed(banked[0], encoders, TEXTS, role=role)


def test_the_librarys_words_for_queries_and_documents(opened):
    np.testing.assert_array_equal(opened.encode_document(TEXTS, domain="prompt"), opened.encode(TEXTS, domain="prompt"))
    names = ["prompt", "map"] * (len(TEXTS) // 2) + ["map"] * (len(TEXTS) % 2)
    np.testing.assert_array_equal(
        opened.encode_query(TEXTS, domain=names), opened.encode(TEXTS, domain=names, role="query")
    )
    np.testing.assert_array_equal(opened.encode_query(TEXTS, domain="both"), opened.encode(TEXTS, domain="both"))


def test_roles_that_a_domain_does_not_have(opened):
    with pytest.raises(CseError, match="role: 'query' is not known; this model has none"):
        opened.encode(TEXTS[:2], domain=["prompt", "both"], role="query")
    with pytest.raises(CseError, match="role: 'document' is not known; one of query, passage"):
        opened.encode(TEXTS, domain="prompt", role="document")
    with pytest.raises(CseError, match="dimensions: 8; this model gives 32, and its vectors cannot be cut"):
        opened.encode(TEXTS, domain="prompt", role="query", dimensions=8)


def test_the_nearest_domain_answers_with_the_side_that_is_asked_for(banked, opened):
    encoder = banked[1]["prompt"]
    for role in ("query", None):
        found = opened.encode(TEXTS, domain="auto", role=role)
        np.testing.assert_allclose(found, encoder.encode(TEXTS, role=role), atol=1e-5)


def test_one_domain_for_code_that_knows_no_banks(banked):
    folder, encoders = banked
    onnx = OnnxEncoder(folder, provider="cpu")
    one = onnx.of("prompt")
    assert (one.texts, one.query_side.name) == ({"query": "", "passage": ""}, "prompt")
    assert check_parity(encoders["prompt"], one, SENTENCES, tolerance=1e-5)["largest_difference"] < 1e-5
    with pytest.raises(CseError, match="differs from torch by"):
        check_parity(encoders["map"], one, SENTENCES, tolerance=1e-5)
    assert (onnx.of("both").texts, onnx.of("auto").texts) == ({}, {})
    assert onnx.of("both").query_side is None


def test_task_texts_go_before_queries_and_passages(tmp_path):
    folder = make_backbone_folder(tmp_path / "e5", "bert")
    texts = {"query": "the query ", "passage": "the passage "}
    (folder / PROMPTS).write_text(json.dumps({"prompts": texts}), encoding="utf-8")
    encoder = query_side(backbone_of(folder), **PARTS["prompt, projector and map"])
    create_bank(encoder, tmp_path / "bank", tolerance=1e-5)
    add_domain(tmp_path / "bank", make_domain(encoder, "legal"))
    for onnx in (OnnxEncoder(tmp_path / "bank", provider="cpu").of("legal"), bundle_of(encoder, tmp_path / "bundle")):
        for role in ("query", "passage", None):
            found = onnx.encode(TEXTS, role=role)
            np.testing.assert_allclose(found, encoder.encode(TEXTS, role=role), atol=1e-5)
        assert np.abs(onnx.encode(TEXTS, role="passage") - found).max() > 0.01
