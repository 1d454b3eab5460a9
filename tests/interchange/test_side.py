"""A query side in the folders of other libraries: a Router that sends queries and documents their own way."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cse.errors import CseError
from cse.model.declared import PROMPTS
from cse.model.sentence_encoder import SentenceEncoder
from tests.export.systems import SENTENCES
from tests.parts import backbone_of
from tests.sides import PARTS, query_side
from tests.tiny import make_backbone_folder

pytest.importorskip("sentence_transformers")
from sentence_transformers import SentenceTransformer

from cse.interchange.importing import import_model
from cse.interchange.peft import export_adapter
from cse.interchange.sentence_transformers import export_sentence_transformers

LONG = "two small birds eat red apple bread near the old river " * 5
TEXTS = [*SENTENCES, LONG]


def export(encoder, folder, normalize=True):
    export_sentence_transformers(encoder, folder, TEXTS, normalize=normalize, tolerance=1e-5)
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, trust_remote_code=True)


@pytest.mark.parametrize("parts", PARTS)
def test_both_sides_give_the_encoders_vectors(tiny_folders, tmp_path, code_cache, parts):
    encoder = query_side(backbone_of(tiny_folders["bert"]), **PARTS[parts])
    model = export(encoder, tmp_path / "model")
    np.testing.assert_allclose(model.encode_query(TEXTS), encoder.encode(TEXTS, role="query"), atol=1e-5)
    for encode in (model.encode_document, model.encode):
        np.testing.assert_allclose(encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)
    weights = [path for path in (tmp_path / "model").rglob("model.safetensors") if path.stat().st_size > 50_000]
    assert len(weights) == 1, "both sides share the language model"
    assert (list((tmp_path / "model").rglob("*.py")) == []) == (parts == "map"), "a map alone needs no code"


def test_task_texts_stand_before_each_side(tmp_path, code_cache):
    folder = make_backbone_folder(tmp_path / "e5", "bert")
    texts = {"query": "the query ", "passage": "the book "}
    (folder / PROMPTS).write_text(json.dumps({"prompts": texts}), encoding="utf-8")
    encoder = query_side(backbone_of(folder), **PARTS["prompt"])
    model = export(encoder, tmp_path / "model")
    np.testing.assert_allclose(model.encode_query(TEXTS), encoder.encode(TEXTS, role="query"), atol=1e-5)
    np.testing.assert_allclose(model.encode_document(TEXTS), encoder.encode(TEXTS, role="passage"), atol=1e-5)


def test_it_is_not_read_back_as_one_side_and_peft_has_no_place_for_it(tiny_folders, tmp_path):
    bert = backbone_of(tiny_folders["bert"])
    encoder = query_side(bert, **PARTS["map"])
    export_sentence_transformers(encoder, tmp_path / "model", TEXTS, normalize=True, tolerance=1e-5)
    with pytest.raises(CseError, match=r"holds no config\.json; give the folder of a saved transformers model"):
        SentenceEncoder.load(tmp_path / "model")
    with pytest.raises(CseError, match=r"model: .*modules\.json: a Router, .* two sides are not read back"):
        import_model(tmp_path / "model", "sentence-transformers", str(tiny_folders["bert"]), tmp_path / "out")
    with pytest.raises(CseError, match="because its prompt is for queries alone"):
        export_adapter(query_side(bert, **PARTS["prompt"]), tmp_path / "adapter", TEXTS, tolerance=1e-5)
