"""Bundles in float16, and inputs bound to a device's memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

from cse.export.bundle import write_bundle
from cse.runtime.bundle import read_manifest
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.providers import OnnxruntimeGraph
from tests.parts import new_prompt, sentence_encoder

SENTENCES = ["red bird", "", "a small dog sleeps on the mat", "the old house"] * 5


@pytest.fixture
def encoder(bert):
    return sentence_encoder(bert, new_prompt("key_value", bert, length=5, init_std=0.7), pooler="mean")


def test_half_precision_is_near_and_takes_half_the_space(encoder, tmp_path):
    for precision in ("fp32", "fp16"):
        with write_bundle(encoder, tmp_path / precision, normalize=True, metrics={}, precision=precision):
            pass
    half = OnnxEncoder(tmp_path / "fp16", provider="cpu")
    difference = np.abs(half.encode(SENTENCES) - encoder.encode(SENTENCES)).max()
    assert 1e-6 < difference < 3e-3
    assert (read_manifest(tmp_path / "fp16").precision, read_manifest(tmp_path / "fp32").precision) == ("fp16", "fp32")
    graphs = {name: onnx.load(tmp_path / name / "model.onnx").graph for name in ("fp16", "fp32")}
    sizes = {name: sum(len(weight.raw_data) for weight in graph.initializer) for name, graph in graphs.items()}
    assert sizes["fp16"] < 0.6 * sizes["fp32"]
    types = {weight.name: weight.data_type for weight in graphs["fp16"].initializer}
    for node in graphs["fp16"].node:
        if node.op_type == "LayerNormalization":
            assert all(types.get(name, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT for name in node.input[1:])


def test_bound_memory_gives_the_same_from_several_threads(encoder, tmp_path):
    with write_bundle(encoder, tmp_path / "bundle", normalize=True, metrics={}):
        pass
    onnx_encoder = OnnxEncoder(tmp_path / "bundle", provider="cpu")
    expected = onnx_encoder.encode(SENTENCES)
    onnx_encoder._graph = OnnxruntimeGraph(onnx_encoder._graph.session, "cpu")  # as on a GPU, whose memory is not here
    with ThreadPoolExecutor(4) as threads:
        for vectors in threads.map(lambda _: onnx_encoder.encode(SENTENCES), range(4)):
            np.testing.assert_array_equal(vectors, expected)
