"""Vectors in files: the same as without, computed once on any thread, never another model's, and not held in memory."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.exports import bundle_of
from tests.parts import backbone_of
from tests.sides import query_side

TEXTS = ["the cat sits on the mat", "a dog", "two small birds eat red apple bread", "a dog"]


@pytest.fixture
def counted(monkeypatch):
    """Rows that any encoder computed."""
    rows, embed = [], SentenceEncoder.embed
    monkeypatch.setattr(SentenceEncoder, "embed", lambda self, ids, *of: rows.append(len(ids)) or embed(self, ids, *of))
    return rows


def test_documents_are_computed_once_and_found_in_the_file(tiny_folders, tmp_path, counted):
    folder, path = tiny_folders["bert"], tmp_path / "vectors"
    bare = SentenceEncoder.load(folder)
    side = query_side(backbone_of(folder), length=3, mapped=True)
    plain = bare.encode(TEXTS)
    queries = side.encode(TEXTS, role="query")
    counted.clear()
    bare.kept = side.kept = KeptVectors(path)
    assert np.array_equal(bare.encode(TEXTS), plain) and counted == [3]
    assert np.array_equal(side.encode(TEXTS[::-1], role="passage"), plain[::-1]) and counted == [3]
    assert np.array_equal(side.encode(TEXTS, role="query"), queries) and counted == [3, 3], "a query side is trained"
    raw = bare.encode(TEXTS, normalize=False)
    assert not np.array_equal(raw, plain) and counted == [3, 3], "kept before they are scaled"
    bare.kept = KeptVectors(path)
    longer = [*TEXTS, "the cat sits on the mat and the dog"]
    assert np.array_equal(bare.encode(longer)[:4], plain) and counted == [3, 3, 1]
    (file,) = path.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    bare.kept = KeptVectors(path)
    longer = bare.encode(longer)
    assert np.array_equal(longer[:4], plain) and counted == [3, 3, 1, 1], "the record that a kill cut is made again"
    assert np.array_equal(bare.encode(TEXTS[:1]), longer[:1]) and counted == [3, 3, 1, 1]


def test_another_backbone_and_one_that_may_be_trained_have_vectors_of_their_own(tiny_folders, tmp_path, counted):
    bert, roberta = (SentenceEncoder.load(tiny_folders[name]) for name in ("bert", "roberta"))
    alone = roberta.encode(TEXTS)
    trained = SentenceEncoder(backbone_of(tiny_folders["bert"]), trained="full")
    bert.kept = roberta.kept = trained.kept = KeptVectors(tmp_path / "vectors")
    bert.encode(TEXTS)
    assert np.array_equal(roberta.encode(TEXTS), alone)
    counted.clear()
    trained.encode(TEXTS)
    assert counted == [3]


def test_threads_share_them(tmp_path):
    kept, ids = KeptVectors(tmp_path / "vectors"), np.arange(64 * 3).reshape(64, 3)
    computed: list[int] = []

    def embed(ids, mask):
        computed.extend(ids[:, 0].tolist())
        return np.stack([ids[:, 0], ids[:, 2]], axis=1).astype(np.float32)

    def run(start):
        rows = np.roll(ids, start, axis=0)
        assert np.array_equal(kept.embed("of", 2, rows, np.ones_like(rows), embed), embed(rows, None))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(40)))
    computed.clear()
    again = KeptVectors(tmp_path / "vectors")
    assert np.array_equal(again.embed("of", 2, ids, np.ones_like(ids), embed), ids[:, [0, 2]]) and not computed


def test_a_bundle_takes_what_torch_kept_and_keeps_nothing(tiny_folders, tmp_path, monkeypatch):
    side = query_side(backbone_of(tiny_folders["bert"]), length=3, mapped=True)
    fresh = bundle_of(side, tmp_path / "bundle").encode(TEXTS, normalize=False)
    ran, run = [], OnnxEncoder._run
    monkeypatch.setattr(OnnxEncoder, "_run", lambda self, *of: ran.append(len(of[1]["input_ids"])) or run(self, *of))
    side.kept = KeptVectors(tmp_path / "vectors")
    plain = side.encode(TEXTS[:2], normalize=False)
    assert np.abs(fresh[:2] - plain).max() < 1e-6
    (file,) = (tmp_path / "vectors").iterdir()
    size = file.stat().st_size
    onnx = OnnxEncoder(tmp_path / "bundle", provider="cpu", threads=1, kept=side.kept)
    found = onnx.encode(TEXTS, normalize=False)
    assert np.array_equal(found[:2], plain) and ran == [1] and file.stat().st_size == size
    onnx.encode(TEXTS, role="query")
    assert ran == [1, 3], "a query side is no backbone"
