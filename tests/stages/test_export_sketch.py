"""Stage ``export`` and ``cse bank add --data`` leave a sketch of the vectors of the training text."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cse.data.store import PreparedData
from cse.model.declared import PROMPTS
from cse.runtime.bank import Bank
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.sketch import SKETCH, distance, read_sketch, sketch_of
from cse.stages import bank, export
from cse.stages.export import export_stage, training_sentences


@pytest.mark.parametrize("most", [2000, 10])
def test_the_sketch_is_of_the_first_column_of_the_training_text(
    models, data, settings, tmp_path, monkeypatch, capsys, most
):
    monkeypatch.setattr(export, "SKETCHED", most)
    folder, prepared = tmp_path / "bundle", PreparedData(data["triplets"])
    export_stage(settings(), model=models["bert"], prepared=data["triplets"], metrics=(), bundle=folder)
    texts = training_sentences(prepared, most)
    assert len(texts) == min(most, len(set(prepared.train["sent0"].to_pylist())))
    assert set(texts) <= set(prepared.train["sent0"].to_pylist())
    found = read_sketch(folder / SKETCH, 32)
    vectors = OnnxEncoder(folder, provider="cpu").encode(texts, normalize=True)
    np.testing.assert_allclose(found.mean, vectors.mean(axis=0), atol=1e-6)
    assert found.count == len(texts)
    assert f"sketching the vectors of {len(texts)} texts" in capsys.readouterr().err
    assert distance(sketch_of(vectors), found) == 0


def test_the_sketch_has_the_task_text_of_queries(models, data, settings, tmp_path):
    """Texts of the same kind, asked for as the model is meant to be asked, have not moved."""
    backbone = shutil.copytree(models["bert"], tmp_path / "backbone")
    (backbone / PROMPTS).write_text(json.dumps({"prompts": {"query": "the old ", "passage": "a red "}}))
    folder = tmp_path / "bundle"
    export_stage(settings(), model=backbone, prepared=data["sentences"], metrics=(), bundle=folder)
    onnx, texts = OnnxEncoder(folder, provider="cpu"), training_sentences(PreparedData(data["sentences"]), 2000)
    reference = read_sketch(folder / SKETCH, 32)
    assert distance(sketch_of(onnx.encode(texts, role="query")), reference) == 0
    assert distance(sketch_of(onnx.encode(texts)), reference) > 0.05


def test_a_domain_that_is_added_with_its_text(models, data, settings, tmp_path, capsys):
    made, folder = settings(), tmp_path / "bank"
    bank.create(str(models["bert"]), folder, made)
    bank.add(str(models["bert"]), folder, "told", made, data=data["sentences"], replace=False)
    bank.add(str(models["bert"]), folder, "untold", made, data=None, replace=False)
    domains = Bank(folder).domains().usable
    texts = training_sentences(PreparedData(data["sentences"]), 2000)
    vectors = OnnxEncoder(folder, provider="cpu").encode(texts, domain="told")
    np.testing.assert_allclose(domains["told"].sketch_mean, vectors.mean(axis=0), atol=1e-6)
    assert domains["told"].sketch_count.tolist() == [len(texts)]
    assert capsys.readouterr().err.count(f"encoding {len(texts)} training texts of told for its centres") == 1
    assert domains["untold"].sketch_mean is None


def test_the_loss_of_a_rounded_bundle_is_in_its_manifest(models, data, settings, tmp_path):
    made = settings({"export.precision": "int8", "export.score_loss": 100.0})
    export_stage(made, model=models["bert"], prepared=data["triplets"], metrics=(), bundle=tmp_path / "bundle")
    parity = json.loads((tmp_path / "bundle" / "bundle.json").read_text())["parity"]
    assert parity["largest_difference"] > 1e-5 and parity["score_loss"] is not None
