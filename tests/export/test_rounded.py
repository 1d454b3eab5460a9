"""Bundles in float16 and in 8 bits, inputs bound to a device's memory, and what rounding may cost."""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from onnx.numpy_helper import from_array, to_array

from cse.data.tasks.kinds import LabelledTexts, Retrieval, ScoredPairs
from cse.errors import CseError
from cse.export import graph as graph_module
from cse.export.mix import mixed_texts
from cse.export.precision import quantize
from cse.runtime.bundle import MODEL, read_manifest
from cse.runtime.session import BEYOND, OnnxruntimeGraph
from cse.stages.export import check_mixed, check_score
from tests.export.exports import bundle_of
from tests.parts import new_prompt, sentence_encoder

SENTENCES = ["red bird", "", "a small dog sleeps on the mat", "the old house"] * 5


@pytest.fixture
def encoder(bert):
    return sentence_encoder(bert, new_prompt("key_value", bert, length=5, init_std=0.7), pooler="mean")


# ---- float16 -------------------------------------------------------------------------------------------------------


def test_half_precision_is_near_and_takes_half_the_space(encoder, tmp_path):
    bundle_of(encoder, tmp_path / "fp32")
    half = bundle_of(encoder, tmp_path / "fp16", precision="fp16")
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
    onnx_encoder = bundle_of(encoder, tmp_path / "bundle")
    expected = onnx_encoder.encode(SENTENCES)
    onnx_encoder._graph = OnnxruntimeGraph(onnx_encoder._graph.session, "cpu")  # as on a GPU, whose memory is not here
    with ThreadPoolExecutor(4) as threads:
        for vectors in threads.map(lambda _: onnx_encoder.encode(SENTENCES), range(4)):
            np.testing.assert_array_equal(vectors, expected)


# ---- 8 bits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [False, True])
def test_products_with_weights_are_of_integers_and_the_rest_is_not(encoder, tmp_path, monkeypatch, beside):
    if beside:  # as the weights of every larger model
        monkeypatch.setattr(graph_module, "EXTERNAL_DATA_BYTES", 1000)
    bundle_of(encoder, tmp_path / "fp32")
    rounded = bundle_of(encoder, tmp_path / "int8", precision="int8", texts=SENTENCES)
    difference = np.abs(rounded.encode(SENTENCES) - encoder.encode(SENTENCES)).max()
    assert 1e-5 < difference < 0.1
    company = ["cat " * 40, *SENTENCES]  # a vector does not depend on the texts beside it
    alone = np.stack([rounded.encode([text])[0] for text in company])
    np.testing.assert_allclose(rounded.encode(company, batch_size=64), alone, rtol=0, atol=1e-6)
    assert read_manifest(tmp_path / "int8").precision == "int8"
    graphs = {name: onnx.load(tmp_path / name / MODEL).graph for name in ("fp32", "int8")}
    kinds = {name: [node.op_type for node in graph.node] for name, graph in graphs.items()}
    assert [value.name for value in graphs["int8"].output] == ["sentence_embedding", BEYOND]
    layers = encoder.backbone.layers
    assert kinds["fp32"].count("MatMul") == kinds["int8"].count("MatMul") == 6 * layers
    for kind in ("Attention", "LayerNormalization"):
        assert kinds["int8"].count(kind) == kinds["fp32"].count(kind) > 0
    weights = {weight.name: weight for weight in graphs["int8"].initializer}
    matrices = [w for w in weights.values() if w.data_type == onnx.TensorProto.INT8 and len(w.dims) == 2]
    assert len(matrices) == 6 * layers
    for weight in matrices:
        assert np.abs(to_array(weight).astype(int)).max() <= 64, "two products of 8 and 7 bits fit into 16"
        scale = weights[weight.name.replace("_quantized", "_scale")]
        assert list(scale.dims) == [weight.dims[1]], "a scale per column"
    data = tmp_path / "int8" / f"{MODEL}.data"
    assert data.is_file() == beside
    if beside:
        assert data.stat().st_mode & 0o777 == (tmp_path / "int8" / MODEL).stat().st_mode & 0o777
        assert data.stat().st_size < 0.7 * (tmp_path / "fp32" / f"{MODEL}.data").stat().st_size


def test_a_loud_channel_does_not_drown_the_others(tmp_path):
    """An activation with one channel a hundred times as loud, times weights that two products share."""
    random = np.random.default_rng(0)
    loud = np.where(np.arange(16) == 5, 100, 1).astype(np.float32)
    weights = (random.normal(size=(16, 16)) / loud[:, None]).astype(np.float32)
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]> twice (float[n, 16] x) => (float[n, 16] y)
        { a = Mul (x, loud) b = MatMul (a, weights) c = Mul (b, loud) y = MatMul (c, weights) }
    """)
    model.graph.initializer.extend([from_array(loud, "loud"), from_array(weights, "weights")])
    onnx.save(model, tmp_path / MODEL)
    x = random.normal(size=(64, 16)).astype(np.float32)
    quantize(tmp_path / MODEL, [{"x": row[None]} for row in x])
    assert len([w for w in onnx.load(tmp_path / MODEL).graph.initializer if w.data_type == onnx.TensorProto.INT8]) == 2
    (found,) = ort.InferenceSession(tmp_path / MODEL, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    exact = ((x * loud) @ weights * loud) @ weights
    others = np.arange(16) != 5
    assert np.abs(found - exact)[:, others].max() < 0.05 * np.abs(exact)[:, others].max()


@pytest.mark.parametrize("prompts", [0, 2])
def test_texts_beyond_the_ranges_are_counted_and_padding_is_not(tmp_path, prompts):
    """Words 1 to 39 are plain, the others five times as loud, and padding, 0, is louder than any."""
    random = np.random.default_rng(0)
    words = random.normal(size=(50, 16)).astype(np.float32) * np.repeat([100, 1, 5], [1, 39, 10])[:, None]
    constants = {"words": words, **{name: random.normal(size=(16, 16)) for name in ("first", "second")}}
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        words (int64[b, l] input_ids, int64[b, l] attention_mask) => (float[b, p, 16] y)
        <float[b, p, 16] a, float[b, p, 16] b, float[b, p, 16] c>
        { of_words = Gather (words, input_ids) a = Pad (of_words, prompts) b = MatMul (a, first) c = Tanh (b)
          y = MatMul (c, second) }
    """)
    weights = [from_array(value.astype(np.float32), name) for name, value in constants.items()]
    model.graph.initializer.extend([*weights, from_array(np.array([0, prompts, 0, 0, 0, 0]), "prompts")])
    onnx.save(model, tmp_path / MODEL)
    plain = np.arange(1, 40)[:, None, None]
    quantize(tmp_path / MODEL, [{"input_ids": word, "attention_mask": word**0} for word in plain])
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    session = ort.InferenceSession(tmp_path / MODEL, options, providers=["CPUExecutionProvider"])
    ids = np.array([[1, 2, 3], [4, 45, 5], [6, 0, 0], [0, 0, 0]])
    mask = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 0], [0, 0, 0]])
    assert session.run([BEYOND], {"input_ids": ids, "attention_mask": mask})[0].tolist() == [0, 1, 0, 0]
    fused = [node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node]
    assert fused.count("MatMulIntegerToFloat") == 2, "products are of integers still"


class Fixed:
    """Has the same vector for a text each time; ``noise`` moves it."""

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def encode(self, sentences, **_):
        seeds = [sum(map(ord, text)) for text in sentences]
        first, other = (
            np.stack([np.random.default_rng(seed + more).normal(size=8) for seed in seeds]) for more in (0, 999)
        )
        return (first + self.noise * other).astype(np.float32)


def task(count=60):
    first, second = ([f"{side} {number * 7919}" for number in range(count)] for side in ("left", "other"))
    vectors = [Fixed(0.0).encode(side) for side in (first, second)]
    units = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors]
    return ScoredPairs("own", first, second, (units[0] * units[1]).sum(axis=1).astype(float), [""] * count)


def test_the_loss_of_score_is_printed_and_recorded_if_there_is_something_to_score(capsys):
    found = check_score(Fixed(0.0), Fixed(0.1), [task()], 50.0)
    assert 0 < found["score_loss"] < 50
    assert f"STS: torch 100.00, bundle {100 - found['score_loss']:.2f}, loss {found['score_loss']:.2f}" in (
        capsys.readouterr().out
    )
    assert check_score(Fixed(0.0), Fixed(0.0), [task()], 0.0) == {"score_loss": 0.0}
    assert check_score(Fixed(0.0), Fixed(1.0), [], 0.3) == {}
    assert "judged by the vectors alone" in capsys.readouterr().err


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

    refused = r"export\.precision: .* loses \d\d\.\d\d points of faq nDCG@10, more than .* allows, 6\.67;"
    with pytest.raises(CseError, match=refused):
        check_score(Exact(), Forgetful(), [search], 0.3)


class OfQueries(Fixed):
    """Has a query side; ``noise`` moves what that encodes alone."""

    side, beyond_ranges = "query", 0

    def encode(self, sentences, *, role=None, **_):
        logging.getLogger("cse").warning("long texts were cut")
        self.beyond_ranges += 3 * (role is not None)
        vectors = super().encode(sentences) if role else Fixed(0.0).encode(sentences)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_texts_of_the_mix_judge_queries_too_and_nothing_is_said_of_their_length(capsys, caplog):
    found = check_mixed(OfQueries(0.0), OfQueries(0.0))
    share = round(3 / len(mixed_texts(judged=True)), 3)
    assert found == {"mixed_mean_cosine": 1.0, "mixed_neighbours": 1.0, "mixed_beyond_ranges": share}
    assert f"mean cosine with torch 1.000, {100 * share:.1f} % of texts" in capsys.readouterr().out
    with pytest.raises(CseError, match="int8 keeps of numbers, codes, other scripts and single words a mean cosine"):
        check_mixed(OfQueries(0.0), OfQueries(1.0))
    assert not caplog.records and logging.getLogger("cse").isEnabledFor(logging.WARNING)
