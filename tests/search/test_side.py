"""An index belongs to the document side: a query side may change, come and go without touching it."""

import json
import shutil

import numpy as np
import pytest

from cse.export.bundle import make_domain, write_bundle
from cse.export.domains import add_domain
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.cli.workspace import contents
from tests.export.banks import make_encoder
from tests.parts import backbone_of
from tests.rows import write_lines
from tests.search.corpora import read_vectors
from tests.sides import PARTS, query_side
from tests.tiny import WORDS

TEXTS = [" ".join(WORDS[start : start + 1 + start % 4]) for start in range(30)]
QUERIES = ["two small birds", "the cat sits on the mat"]


@pytest.fixture(scope="module")
def models(tiny_folders, empty_banks, tmp_path_factory):
    """Bundles of one backbone: bare, with three query sides, trained on both sides; and a bank of these."""
    root, folder = tmp_path_factory.mktemp("models"), tiny_folders["bert"]
    backbone = backbone_of(folder)
    encoders = {
        "bare": SentenceEncoder(backbone),
        "mapped": query_side(backbone, **PARTS["map"]),
        "prompted": query_side(backbone, **PARTS["prompt"]),
        "later": query_side(backbone, **PARTS["prompt"], seed=5),
        "both": make_encoder(folder, "plain"),
    }
    bank = shutil.copytree(empty_banks("bert"), root / "bank")
    for name, encoder in encoders.items():
        with write_bundle(encoder, root / name, normalize=True, metrics={}):
            pass
        add_domain(bank, make_domain(encoder, name))
    return root


@pytest.fixture
def made(index, tmp_path):
    """Index the texts with a model."""
    corpus = write_lines(tmp_path / "corpus.txt", TEXTS)

    def run(model, *options, out=None):
        out = out or tmp_path / f"table-{str(model).rpartition('/')[2].replace(':', '-')}"
        done = index(corpus, out, model, *options)
        return done if done.code else out

    return run


def cosines(found):
    return [{hit["id"]: hit["cosine"] for hit in json.loads(line)["hits"]} for line in found.out.splitlines()]


SIDES = ["mapped", "prompted", "bank:mapped", "bank:later"]


@pytest.mark.parametrize("made_by", ["bare", "prompted", "bank:mapped"])
def test_any_query_side_searches_any_index_and_changes_nothing(cse, made, models, made_by):
    out = made(models / made_by)
    bare = OnnxEncoder(models / "bare", provider="cpu").encode(TEXTS)
    np.testing.assert_allclose(read_vectors(out)[1], bare, atol=1e-6)
    before = contents(out)
    for side in [*SIDES, *([None] if made_by == "bank:mapped" else [])]:  # without a name that of then
        named = ("--model", models / side) if side else ()
        found = cse("search", out, *QUERIES, "--mode", "vectors", "-k", 30, "--json", *named)
        assert found.code == 0, found.err
        side = side or made_by
        assert made(models / side, out=out) == out, "another run, whatever is shipped now, embeds nothing again"
        queries = OnnxEncoder(models / side.removeprefix("bank:"), provider="cpu").encode(QUERIES, role="query")
        for hits, expected in zip(cosines(found), queries @ bare.T, strict=True):
            assert hits == {row: pytest.approx(value, abs=1e-5) for row, value in enumerate(expected)}
        assert not found.err
    assert contents(out) == before


def test_rows_are_no_queries_and_what_was_trained_on_both_sides_is_another_model(cse, made, models):
    for model in ("prompted", "bank:prompted"):
        assert made(models / model, "--role", "query").refused() == (
            f"--role query: {models / model.removesuffix(':prompted')} has a query side, which is for searching; an "
            "index holds what the bare backbone makes, so index without --role, or with --role passage"
        )
    out = made(models / "both")
    for model in ("bare", "prompted", "bank:prompted"):
        found = cse("search", out, QUERIES[0], "--model", models / model)
        assert "not the model that made" in found.refused()
    out = made(models / "bare")
    found = cse("search", out, QUERIES[0], "--model", models / "bank:both")
    assert "not the model that made" in found.refused()


def test_another_backbone_in_the_settings_is_exported_anew(cse, tiny_folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = write_lines(tmp_path / "corpus.txt", TEXTS[:3])
    made = []
    for family in ("bert", "bert", "roberta"):
        (tmp_path / "params.yaml").write_text(f"backbone:\n  name: {tiny_folders[family]}\n")
        done = cse("index", corpus, "--out", "table", "--device", "cpu", "--again")
        assert done.code == 0, done.err
        made.append("exporting the bare backbone" in done.err)
        bundle = json.loads((tmp_path / "data/bare/bundle.json").read_text())
        assert bundle["backbone"]["name"] == str(tiny_folders[family])
        assert bundle["parity"]["largest_difference"] < 1e-4
    assert made == [True, False, True]
