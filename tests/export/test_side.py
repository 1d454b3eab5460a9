"""Query sides: one graph for both sides, and what queries add to it in a file beside it; or domains of a bank."""

import shutil

import numpy as np
import pytest
import torch

from cse.export.bank import create_bank
from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.export.parity import check_parity
from cse.model.declared import PROMPTS
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.banks import check_mixed, make_encoder
from tests.export.exports import bundle_of, export
from tests.export.systems import SENTENCES
from tests.parts import backbone_of, refusal
from tests.rows import write_objects
from tests.sides import PARTS, query_side
from tests.tiny import make_backbone_folder

LONG = "two small birds eat red apple bread near the old river " * 5  # longer than either side takes
TEXTS = [*SENTENCES, LONG]


@pytest.fixture(scope="module", params=PARTS)
def sides(request, tiny_folders, tmp_path_factory):
    """An encoder with a query side and its open bundle; do not change them."""
    encoder = query_side(backbone_of(tiny_folders["bert"]), **PARTS[request.param])
    return encoder, export(encoder, tmp_path_factory.mktemp("sides") / "bundle", texts=TEXTS).open()


def test_both_roles_equal_torch_also_in_one_batch(sides):
    encoder, onnx = sides
    assert (onnx.texts, onnx.max_length) == (encoder.texts, encoder.documents.max_length)
    for role in ("query", "passage", None):
        for batch_size in (1, 3, 64):
            found = onnx.encode(TEXTS, batch_size, role=role)
            np.testing.assert_allclose(found, encoder.encode(TEXTS, role=role), atol=1e-5)
        np.testing.assert_allclose(onnx.encode(LONG, role=role), encoder.encode(LONG, role=role), atol=1e-5)
    assert np.abs(onnx.encode(TEXTS, role="query") - onnx.encode(TEXTS)).max(axis=1).min() > 1e-3
    roles = ["query" if row % 2 else "passage" for row in range(len(TEXTS))]
    domains = [onnx.bank.only.in_role(role, onnx.bank.bare) for role in roles]
    tokens = onnx.tokenize(TEXTS, domains)
    assert len({len(tokens.row(row)) for row in range(len(TEXTS))}) > 4
    found = onnx.embed_rows([tokens.row(row) for row in range(len(TEXTS))], domains)
    expected = [encoder.encode(text, normalize=False, role=role) for text, role in zip(TEXTS, roles, strict=True)]
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)


@pytest.mark.parametrize("parts", ["prompt", "map"])
@pytest.mark.parametrize(("precision", "least"), [("fp16", 0.9999), ("int8", 0.98)])
def test_rounded_bundles_keep_both_sides(tiny_folders, tmp_path, parts, precision, least):
    encoder = query_side(backbone_of(tiny_folders["bert"]), **PARTS[parts])
    onnx = export(encoder, tmp_path / "bundle", precision=precision, texts=TEXTS).open()
    for role in ("query", "passage"):
        cosines = (onnx.encode(TEXTS, role=role) * encoder.encode(TEXTS, role=role)).sum(axis=1)
        assert cosines.mean() > least
    assert onnx.manifest.parity["of_training"] > 0.9


def test_parity_sees_a_fault_of_either_side(tiny_folders, tmp_path):
    encoder = query_side(backbone_of(tiny_folders["bert"]), **PARTS["prompt"])
    onnx = export(encoder, tmp_path / "bundle").open()
    other = query_side(backbone_of(tiny_folders["bert"]), **PARTS["prompt"], seed=3)
    assert "differs from torch by" in refusal(check_parity, other, onnx, SENTENCES, tolerance=1e-5)
    with torch.no_grad():
        encoder.backbone.model.embeddings.word_embeddings.weight.mul_(1.5)
    assert "differs from torch by" in refusal(check_parity, encoder, onnx, SENTENCES, tolerance=1e-5)


# ---- domains of a bank ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def banked(tiny_folders, empty_banks, tmp_path_factory):
    """A bank with every kind of query side and a domain of both sides, and their encoders; do not change it."""
    folder = shutil.copytree(empty_banks("bert"), tmp_path_factory.mktemp("bank") / "bank")
    backbone = backbone_of(tiny_folders["bert"])
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


def test_roles_of_one_domain_and_of_several(banked, opened):
    names = ["prompt", "map"] * (len(TEXTS) // 2) + ["map"] * (len(TEXTS) % 2)
    queries = opened.encode(TEXTS, domain=names, role="query")
    np.testing.assert_array_equal(opened.encode_query(TEXTS, domain=names), queries)
    np.testing.assert_array_equal(opened.encode_query(TEXTS, domain="both"), opened.encode(TEXTS, domain="both"))
    for texts, domain, more, said in (
        (TEXTS[:2], ["prompt", "both"], {}, "role: 'query' is not known; this model has none"),
        (TEXTS, "prompt", {"dimensions": 8}, "dimensions: 8; this model gives 32, and its vectors cannot be cut"),
    ):
        assert said in refusal(opened.encode, texts, domain=domain, role="query", **more)
    encoder, one = banked[1]["prompt"], opened.of("prompt")
    for role in ("query", None):  # the nearest domain answers with the side that is asked for
        found = opened.encode(TEXTS, domain="auto", role=role)
        np.testing.assert_allclose(found, encoder.encode(TEXTS, role=role), atol=1e-5)
    assert (one.texts, one.query_side.name) == ({"query": "", "passage": ""}, "prompt")
    assert check_parity(encoder, one, SENTENCES, tolerance=1e-5)["largest_difference"] < 1e-5
    assert (opened.of("both").texts, opened.of("both").query_side) == ({}, None)


def test_task_texts_go_before_queries_and_passages(tmp_path):
    folder = make_backbone_folder(tmp_path / "e5", "bert")
    write_objects(folder / PROMPTS, [{"prompts": {"query": "the query ", "passage": "the passage "}}])
    encoder = query_side(backbone_of(folder), **PARTS["prompt, projector and map"])
    create_bank(encoder, tmp_path / "bank", tolerance=1e-5)
    add_domain(tmp_path / "bank", make_domain(encoder, "legal"))
    for onnx in (OnnxEncoder(tmp_path / "bank", provider="cpu").of("legal"), bundle_of(encoder, tmp_path / "bundle")):
        for role in ("query", "passage", None):
            found = onnx.encode(TEXTS, role=role)
            np.testing.assert_allclose(found, encoder.encode(TEXTS, role=role), atol=1e-5)
        assert np.abs(onnx.encode(TEXTS, role="passage") - found).max() > 0.01
