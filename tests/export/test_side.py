"""A bundle with a query side: one graph for both sides, and what queries add to it in a file beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cse.errors import CseError
from cse.export.bundle import write_bundle
from cse.export.graph import write_graph
from cse.export.parity import check_parity
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bundle import MODEL, file_of, read_manifest
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.systems import SENTENCES
from tests.parts import backbone_of
from tests.sides import PARTS, query_side

LONG = "two small birds eat red apple bread near the old river " * 5  # longer than either side takes
TEXTS = [*SENTENCES, LONG]


QUERY_SIDE = file_of("query")


def fresh(folder):
    return backbone_of(folder)


def export(encoder, folder, precision="fp32", sentences=TEXTS):
    with write_bundle(encoder, folder, normalize=True, metrics={}, precision=precision, texts=TEXTS) as draft:
        onnx = OnnxEncoder(draft.folder, provider="cpu", threads=1)
        draft.parity = check_parity(encoder, onnx, sentences, tolerance=1e-5, precision=precision)
    return folder


@pytest.fixture(scope="module", params=PARTS)
def sides(request, tiny_folders, tmp_path_factory):
    """An encoder with a query side, its bundle, and the bare backbone's; do not change them."""
    folder, root = tiny_folders["bert"], tmp_path_factory.mktemp("sides")
    encoder = query_side(fresh(folder), **PARTS[request.param])
    bare = export(SentenceEncoder.load(folder), root / "bare")
    return encoder, export(encoder, root / "bundle"), bare


def test_both_roles_equal_torch(sides):
    encoder, folder, _ = sides
    onnx = OnnxEncoder(folder, provider="cpu", threads=1)
    assert (onnx.texts, onnx.max_length) == (encoder.texts, encoder.documents.max_length)
    for role in ("query", "passage", None):
        for batch_size in (1, 3, 64):
            found = onnx.encode(TEXTS, batch_size, role=role)
            np.testing.assert_allclose(found, encoder.encode(TEXTS, role=role), atol=1e-5)
        np.testing.assert_allclose(onnx.encode(LONG, role=role), encoder.encode(LONG, role=role), atol=1e-5)
    assert np.abs(onnx.encode(TEXTS, role="query") - onnx.encode(TEXTS)).max(axis=1).min() > 1e-3
    np.testing.assert_array_equal(onnx.encode_query(TEXTS), onnx.encode(TEXTS, role="query"))
    np.testing.assert_array_equal(onnx.encode_document(TEXTS), onnx.encode(TEXTS))
    with pytest.raises(CseError, match="role: 'document' is not known; one of query, passage"):
        onnx.encode(TEXTS, role="document")


def test_queries_and_documents_share_a_batch(sides):
    encoder, folder, _ = sides
    onnx = OnnxEncoder(folder, provider="cpu", threads=1)
    roles = ["query" if row % 2 else "passage" for row in range(len(TEXTS))]
    domains = [onnx.bank.only.in_role(role, onnx.bank.bare) for role in roles]
    tokens = onnx.tokenize(TEXTS, domains)
    assert len({len(tokens.row(row)) for row in range(len(TEXTS))}) > 4
    found = onnx.embed_rows([tokens.row(row) for row in range(len(TEXTS))], domains)
    expected = [encoder.encode(text, normalize=False, role=role) for text, role in zip(TEXTS, roles, strict=True)]
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)


def test_documents_have_one_identity_and_a_map_alone_leaves_the_graph(sides):
    encoder, folder, bare = sides
    manifest, plain = read_manifest(folder), read_manifest(bare)
    assert (manifest.side, plain.side) == ("query", "both")
    assert manifest.documents == plain.documents != ""
    assert manifest.files.keys() - plain.files.keys() == {QUERY_SIDE}
    onnx, without = OnnxEncoder(folder, provider="cpu", threads=1), OnnxEncoder(bare, provider="cpu", threads=1)
    if encoder.prompt is None and encoder.cls is None:
        assert (folder / MODEL).read_bytes() == (bare / MODEL).read_bytes()
        np.testing.assert_array_equal(onnx.encode(TEXTS, role="passage"), without.encode(TEXTS))
    np.testing.assert_allclose(onnx.encode(TEXTS), without.encode(TEXTS), atol=1e-5)


def test_what_training_changed_is_not_a_document_side(tiny_folders, tmp_path):
    backbone = fresh(tiny_folders["bert"])
    trained = SentenceEncoder(backbone, query_side(backbone, length=3).prompt)
    assert read_manifest(export(trained, tmp_path / "both")).documents == ""


def test_a_graph_without_prompts_is_refused_beside_a_query_side_with_some(tiny_folders, tmp_path, monkeypatch):
    encoder = query_side(fresh(tiny_folders["bert"]), **PARTS["prompt"])
    monkeypatch.setattr(
        "cse.export.bundle.write_bank_graph",
        lambda _, path, **__: write_graph(encoder.documents, path),
    )
    with pytest.raises(CseError, match="has no input 'cls', so it is not a sentence encoder"):
        export(encoder, tmp_path / "bundle")


@pytest.mark.parametrize("parts", ["prompt", "map"])
@pytest.mark.parametrize(("precision", "least"), [("fp16", 0.9999), ("int8", 0.98)])
def test_rounded_bundles_keep_both_sides(tiny_folders, tmp_path, parts, precision, least):
    encoder = query_side(fresh(tiny_folders["bert"]), **PARTS[parts])
    onnx = OnnxEncoder(export(encoder, tmp_path / "bundle", precision), provider="cpu")
    for role in ("query", "passage"):
        cosines = (onnx.encode(TEXTS, role=role) * encoder.encode(TEXTS, role=role)).sum(axis=1)
        assert cosines.mean() > least
    assert read_manifest(onnx.path).parity["of_training"] > 0.9


def test_parity_sees_a_fault_of_either_side(tiny_folders, tmp_path):
    encoder = query_side(fresh(tiny_folders["bert"]), **PARTS["prompt"])
    onnx = OnnxEncoder(export(encoder, tmp_path / "bundle"), provider="cpu")
    other = query_side(fresh(tiny_folders["bert"]), **PARTS["prompt"], seed=3)
    with pytest.raises(CseError, match="differs from torch by"):
        check_parity(other, onnx, SENTENCES, tolerance=1e-5)
    with torch.no_grad():
        encoder.backbone.model.embeddings.word_embeddings.weight.mul_(1.5)
    with pytest.raises(CseError, match="differs from torch by"):
        check_parity(encoder, onnx, SENTENCES, tolerance=1e-5)
