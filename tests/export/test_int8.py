"""Bundles in 8 bits, and what rounding may cost."""

from __future__ import annotations

import copy
import re

import numpy as np
import onnx
import pytest
import torch

from cse.data.tasks.kinds import LabelledTexts, Retrieval, ScoredPairs
from cse.errors import CseError
from cse.export import graph as graph_module
from cse.export import int8
from cse.export.bundle import write_bundle
from cse.runtime.bundle import MODEL, read_manifest
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.stages.export import check_score
from tests.parts import new_prompt, sentence_encoder

SENTENCES = ["red bird", "", "a small dog sleeps on the mat", "the old house"] * 5


@pytest.fixture
def encoder(bert):
    return sentence_encoder(bert, new_prompt("key_value", bert, length=3, init_std=0.7), pooler="mean")


@pytest.mark.parametrize("beside", [False, True])
def test_products_with_weights_are_of_integers_and_the_rest_is_not(encoder, tmp_path, monkeypatch, beside):
    if beside:  # as the weights of every larger model
        monkeypatch.setattr(graph_module, "EXTERNAL_DATA_BYTES", 1000)
    for precision in ("fp32", "int8"):
        with write_bundle(encoder, tmp_path / precision, normalize=True, metrics={}, precision=precision):
            pass
    rounded = OnnxEncoder(tmp_path / "int8", provider="cpu")
    difference = np.abs(rounded.encode(SENTENCES) - encoder.encode(SENTENCES)).max()
    assert 1e-5 < difference < 0.1
    assert read_manifest(tmp_path / "int8").precision == "int8"
    graphs = {name: onnx.load(tmp_path / name / MODEL).graph for name in ("fp32", "int8")}
    kinds = {name: [node.op_type for node in graph.node] for name, graph in graphs.items()}
    layers = encoder.backbone.layers
    assert kinds["fp32"].count("MatMul") == kinds["int8"].count("MatMulInteger") == 6 * layers
    assert "MatMul" not in kinds["int8"]
    for kind in ("Attention", "LayerNormalization"):
        assert kinds["int8"].count(kind) == kinds["fp32"].count(kind) > 0
    for weight in graphs["int8"].initializer:
        if weight.data_type == onnx.TensorProto.INT8 and len(weight.dims) == 2:
            scale = next(w for w in graphs["int8"].initializer if w.name == weight.name.replace("_quantized", "_scale"))
            assert list(scale.dims) == [weight.dims[1]], "a scale per column"
    data = tmp_path / "int8" / f"{MODEL}.data"
    assert data.is_file() == beside
    if beside:
        assert data.stat().st_mode & 0o777 == (tmp_path / "int8" / MODEL).stat().st_mode & 0o777
        assert data.stat().st_size < 0.7 * (tmp_path / "fp32" / f"{MODEL}.data").stat().st_size


def test_a_product_whose_activations_one_scale_does_not_fit_stays_in_float32(bert, tmp_path, monkeypatch):
    """A few huge activations, as in every model of BERT-base's size, that the next layer hardly reads."""
    backbone = copy.deepcopy(bert)
    with torch.no_grad():
        for layer in (backbone.model.encoder.layer[1], backbone.model.encoder.layer[2]):
            layer.intermediate.dense.bias[3] = 500.0
            layer.output.dense.weight[:, 3] = 0.0
    encoder = sentence_encoder(backbone, None, pooler="mean")
    cosines = []
    for name, most in (("kept", int8.MOST_LOST), ("rounded", np.inf)):
        monkeypatch.setattr(int8, "MOST_LOST", most)
        with write_bundle(encoder, tmp_path / name, normalize=True, metrics={}, precision="int8"):
            pass
        found = OnnxEncoder(tmp_path / name, provider="cpu").encode(SENTENCES)
        cosines.append((found * encoder.encode(SENTENCES)).sum(axis=1).mean())
    assert cosines[0] > 0.999 > cosines[1]
    kinds = [node.op_type for node in onnx.load(tmp_path / "kept" / MODEL).graph.node]
    assert (kinds.count("MatMul"), kinds.count("MatMulInteger")) == (2, 6 * backbone.layers - 2)


class Fixed:
    """Has the same vector for a text each time; ``noise`` moves it."""

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def encode(self, sentences, **_):
        seeds = [sum(map(ord, text)) for text in sentences]
        return np.stack(
            [
                np.random.default_rng(s).normal(size=8) + self.noise * np.random.default_rng(s + 999).normal(size=8)
                for s in seeds
            ]
        ).astype(np.float32)


def task(count=60):
    first, second = ([f"{side} {number * 7919}" for number in range(count)] for side in ("left", "other"))
    vectors = [Fixed(0.0).encode(side) for side in (first, second)]
    units = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors]
    return ScoredPairs("own", first, second, (units[0] * units[1]).sum(axis=1).astype(float), [""] * count)


def test_the_loss_of_score_is_printed_and_recorded(capsys):
    found = check_score(Fixed(0.0), Fixed(0.1), [task()], 50.0)
    assert 0 < found["score_loss"] < 50
    said = capsys.readouterr()
    assert f"STS: torch 100.00, bundle {100 - found['score_loss']:.2f}, loss {found['score_loss']:.2f}" in said.out
    assert said.err == "scoring torch and the bundle on 120 texts of the evaluation\n"
    assert check_score(Fixed(0.0), Fixed(0.0), [task()], 0.0) == {"score_loss": 0.0}


def test_too_large_a_loss_is_refused():
    with pytest.raises(
        CseError, match=r"export\.precision: the bundle loses \d+\.\d\d points of STS, more than .* 0\.3;"
    ):
        check_score(Fixed(0.0), Fixed(1.0), [task()], 0.3)


class Forgetful:
    """Has other vectors at each call."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def encode(self, sentences, **_):
        return self.random.normal(size=(len(sentences), 8)).astype(np.float32)


def test_without_scored_pairs_ones_own_task_is_scored(capsys):
    texts = [f"left {number * 7919}" for number in range(30)]
    labelled = LabelledTexts("intents", texts[:20], ["a", "b"] * 10, texts[20:], ["a", "b"] * 5)
    assert check_score(Fixed(0.0), Fixed(0.0), [labelled], 0.3) == {"score_loss": 0.0}
    assert re.fullmatch(r"intents kNN: torch (\d+\.00), bundle \1, loss 0\.00\n", capsys.readouterr().out)
    places = np.arange(30)
    search = Retrieval("faq", [*texts], [f"{text}." for text in texts], places, places, np.ones(30, np.int64))
    exact = {text: Fixed(0.0).encode([text.removesuffix(".")])[0] for text in [*search.queries, *search.documents]}

    class Exact:
        def encode(self, sentences, **_):
            return np.stack([exact[text] for text in sentences])

    refused = r"loses \d\d\.\d\d points of faq nDCG@10, more than export\.score_loss allows, 6\.67;"
    with pytest.raises(CseError, match=refused):
        check_score(Exact(), Forgetful(), [search], 0.3)


def test_without_anything_to_score_it_says_so(capsys):
    assert check_score(Fixed(0.0), Fixed(1.0), [], 0.3) == {}
    assert "judged by the vectors alone" in capsys.readouterr().err
