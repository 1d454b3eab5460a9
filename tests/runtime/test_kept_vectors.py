"""Vectors that are kept: the same as without, computed once, and never those of another model."""

from __future__ import annotations

import numpy as np
import pytest

from cse.export.bundle import write_bundle
from cse.export.parity import check_parity
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.sentence_encoder import SentenceEncoder, load_bare
from cse.runtime.kept_vectors import keep_vectors, kept
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.sides import query_side

TEXTS = ["the cat sits on the mat", "a dog", "two small birds eat red apple bread", "a dog"]


@pytest.fixture
def counted(monkeypatch):
    """Rows that any encoder computed."""
    rows: list[int] = []
    embed = SentenceEncoder.embed

    def counting(self, ids, mask, constants=None):
        rows.append(len(ids))
        return embed(self, ids, mask, constants)

    monkeypatch.setattr(SentenceEncoder, "embed", counting)
    return rows


def test_documents_are_computed_once_and_found_in_the_file(tiny_folders, tmp_path, counted):
    folder, path = tiny_folders["bert"], tmp_path / "vectors"
    bare = load_bare(str(folder))
    side = query_side(load_backbone(find_backbone(str(folder))), length=3, mapped=True)
    plain = bare.encode(TEXTS)
    queries = side.encode(TEXTS, role="query")
    counted.clear()
    with keep_vectors(path):
        assert np.array_equal(bare.encode(TEXTS), plain) and counted == [3]
        assert np.array_equal(side.encode(TEXTS[::-1], role="passage"), plain[::-1]) and counted == [3]
        assert np.array_equal(side.encode(TEXTS, role="query"), queries) and counted == [3, 3], (
            "a query side is trained"
        )
        raw = bare.encode(TEXTS, normalize=False)
        assert not np.array_equal(raw, plain) and counted == [3, 3], "kept before they are scaled"
    assert kept() is None
    with keep_vectors(path):
        longer = [*TEXTS, "the cat sits on the mat and the dog"]
        assert np.array_equal(bare.encode(longer)[:4], plain) and counted == [3, 3, 1]
    (file,) = path.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    with keep_vectors(path):
        longer = bare.encode(longer)
        assert np.array_equal(longer[:4], plain) and counted == [3, 3, 1, 1], "the record that a kill cut is made again"
        assert np.array_equal(bare.encode(TEXTS[:1]), longer[:1]) and counted == [3, 3, 1, 1]


def test_another_backbone_has_vectors_of_its_own(tiny_folders, tmp_path):
    bert, roberta = (load_bare(str(tiny_folders[name])) for name in ("bert", "roberta"))
    alone = roberta.encode(TEXTS)
    with keep_vectors(tmp_path / "vectors"):
        bert.encode(TEXTS)
        assert np.array_equal(roberta.encode(TEXTS), alone)


def test_an_encoder_that_may_be_trained_keeps_nothing(tiny_folders, tmp_path):
    with keep_vectors(tmp_path / "vectors"):
        SentenceEncoder.load(tiny_folders["bert"]).encode(TEXTS)
    assert not (tmp_path / "vectors").exists()


def test_a_bundle_takes_what_torch_kept_and_its_check_does_not(tiny_folders, tmp_path, counted, monkeypatch):
    side = query_side(load_backbone(find_backbone(str(tiny_folders["bert"]))), length=3, mapped=True)
    with write_bundle(side, tmp_path / "bundle", normalize=True, metrics={}):
        pass
    onnx = OnnxEncoder(tmp_path / "bundle", provider="cpu", threads=1)
    ran: list[int] = []
    run = OnnxEncoder._run

    def counting(self, session, given):
        ran.append(len(given["input_ids"]))
        return run(self, session, given)

    monkeypatch.setattr(OnnxEncoder, "_run", counting)
    fresh = onnx.encode(TEXTS, normalize=False)
    with keep_vectors(tmp_path / "vectors"):
        plain = side.encode(TEXTS[:2], normalize=False)
    assert np.abs(fresh[:2] - plain).max() < 1e-6
    ran.clear()
    (file,) = (tmp_path / "vectors").iterdir()
    size = file.stat().st_size
    with keep_vectors(tmp_path / "vectors", adds=False):
        found = onnx.encode(TEXTS, normalize=False)
        assert np.array_equal(found[:2], plain) and ran == [1] and file.stat().st_size == size
        onnx.encode(TEXTS, role="query")
        assert ran == [1, 3], "a query side is no backbone"
    with keep_vectors(tmp_path / "vectors"):
        side.encode(TEXTS)
        ran.clear()
        counted.clear()
        check_parity(side, onnx, TEXTS[:2], tolerance=1e-5)
        assert len(ran) == 2 * (1 + 2) and counted[0] == 2, "documents and queries, together and one by one"
