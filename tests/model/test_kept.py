"""Vectors that are kept: the same as without, computed once, and never those of another model."""

from __future__ import annotations

import numpy as np
import pytest

from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.bare import BareBackbone
from cse.model.kept import keep_vectors, kept
from cse.model.sentence_encoder import SentenceEncoder
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
    folder, path = tiny_folders["bert"], tmp_path / "vectors.npz"
    bare = BareBackbone(str(folder)).load()
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
    path.write_bytes(path.read_bytes()[:100])
    with keep_vectors(path):
        assert np.array_equal(bare.encode(TEXTS), plain) and counted == [3, 3, 1, 3], (
            "a file that is cut counts as none"
        )


def test_another_backbone_has_vectors_of_its_own(tiny_folders, tmp_path):
    bert, roberta = (BareBackbone(str(tiny_folders[name])).load() for name in ("bert", "roberta"))
    alone = roberta.encode(TEXTS)
    with keep_vectors(tmp_path / "vectors.npz"):
        bert.encode(TEXTS)
        assert np.array_equal(roberta.encode(TEXTS), alone)


def test_an_encoder_that_may_be_trained_keeps_nothing(tiny_folders, tmp_path):
    with keep_vectors(tmp_path / "vectors.npz"):
        SentenceEncoder.load(tiny_folders["bert"]).encode(TEXTS)
    assert not (tmp_path / "vectors.npz").exists()
