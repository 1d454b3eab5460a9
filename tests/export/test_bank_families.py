"""A bank of any family: causal masks, last tokens, narrow word vectors, layers behind the pooling, task texts."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cse.errors import CseError
from cse.export.as_domain import make_domain
from cse.export.bank import create_bank
from cse.export.domains import add_domain
from cse.model.declared import Declared
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.banks import check_mixed
from tests.export.systems import SENTENCES
from tests.model.families import make_family_folder
from tests.parts import backbone_of, new_prompt, sentence_encoder

TEXTS = {"query": "the old house ", "passage": ""}


def with_dense(folder):
    """Put a layer of another width behind a model's mean, in the files of sentence-transformers."""
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in parts]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name in ("1_Pooling", "2_Dense"):
        (folder / name).mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "2_Dense/config.json").write_text('{"activation_function": "torch.nn.modules.activation.Tanh"}')
    save_file(
        {"linear.weight": torch.randn(48, 32) / 6, "linear.bias": torch.randn(48)}, folder / "2_Dense/model.safetensors"
    )
    return folder


def encoders_of(folder, *, cls):
    """Domains that use what a family can have: a prompt, roles, a head, a trained ``[CLS]``, nothing."""
    backbone = backbone_of(folder)
    torch.manual_seed(7)

    def new(length, **options):
        prompt = new_prompt("key_value", backbone, length=length, init_std=0.7) if length else None
        return sentence_encoder(backbone, prompt, position_shift=backbone.family.positions != "rotary", **options)

    found = {"bare": new(0), "long": new(5), "roles": new(2, use=Declared(None, 24, TEXTS))}
    if cls:
        found["cls"] = new(1, cls=True, pooler="cls")
        with torch.no_grad():
            found["cls"].cls.add_(0.5 * torch.randn_like(found["cls"].cls))
    return found


CASES = [
    pytest.param("qwen3", False),
    pytest.param("electra", True, marks=pytest.mark.slow),
    pytest.param("llama, wide heads, no added tokens", False, marks=pytest.mark.slow),
    pytest.param("gemma3, both ways, dense", False, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("case", "cls"), CASES)
def test_mixed_domains_have_their_own_encoders_vectors(case, cls, tmp_path):
    folder = make_family_folder(tmp_path / "model", case.removesuffix(", dense"))
    encoders = encoders_of(with_dense(folder) if case.endswith("dense") else folder, cls=cls)
    width = encoders["bare"].dimension
    assert width == (48 if case.endswith("dense") else 32)
    bank = tmp_path / "bank"
    assert create_bank(encoders["bare"], bank, tolerance=1e-5) < 1e-5
    for name, encoder in encoders.items():
        add_domain(bank, make_domain(encoder, name))
    check_mixed(bank, encoders, SENTENCES)
    onnx = OnnxEncoder(bank, provider="cpu")
    of_query = encoders["roles"].encode(SENTENCES, role="query")
    assert np.abs(of_query - encoders["roles"].encode(SENTENCES)).max() > 0.01
    np.testing.assert_allclose(onnx.encode(SENTENCES, domain="roles", role="query"), of_query, atol=1e-5)
    np.testing.assert_allclose(onnx.encode_query(SENTENCES, domain="roles"), of_query, atol=1e-5)
    np.testing.assert_allclose(
        onnx.encode(SENTENCES, domain="roles", role="passage"), encoders["roles"].encode(SENTENCES), atol=1e-5
    )
    with pytest.raises(CseError, match="role: 'title' is not known; one of passage, query"):
        onnx.encode(SENTENCES, domain="roles", role="title")
    with pytest.raises(CseError, match="role: 'query' is not known; this model has none"):
        onnx.encode(SENTENCES, domain="long", role="query")


def test_the_same_weights_with_a_layer_behind_them_are_another_backbone(tiny_folders, empty_banks, tmp_path):
    bank = shutil.copytree(empty_banks("bert"), tmp_path / "bank")
    wide = with_dense(shutil.copytree(tiny_folders["bert"], tmp_path / "wide"))
    with pytest.raises(CseError, match=r"made for another backbone .* train it on the bank's"):
        add_domain(bank, make_domain(encoders_of(wide, cls=False)["long"], "wide"))
