"""Parity is a claim about the checkpoint, which the bundle of the bare backbone fails; and what rounding may cost."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
import torch
from onnx.numpy_helper import from_array, to_array

from cse.data.tasks.kinds import LabelledTexts, Retrieval, ScoredPairs
from cse.export import graph as graph_module
from cse.export.parity import check_parity
from cse.export.precision import quantize
from cse.runtime.bundle import MODEL
from cse.runtime.session import OnnxruntimeGraph
from cse.stages.export import check_mixed, check_score
from tests.export.exports import bundle_of
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.tiny import WORDS

_RANDOM = np.random.default_rng(2)
SENTENCES = [" ".join(_RANDOM.choice(WORDS, int(count))) for count in _RANDOM.integers(3, 15, 60)]
FEW = ["red bird", "", "a small dog sleeps on the mat", "the old house"] * 5
OWN_ERROR = {"fp32": 1e-6, "fp16": 2e-3, "int8": 0.03}  # of a vector of unit length


def export(encoder, folder, precision):
    return bundle_of(encoder, folder, precision=precision, texts=SENTENCES)


def sizes(vectors):
    return np.linalg.norm(vectors, axis=1)


@pytest.fixture(scope="module", params=list(OWN_ERROR))
def bare(request, tiny_folders, tmp_path_factory):
    """The backbone's own bundle in a precision."""
    backbone = backbone_of(tiny_folders["bert"])
    encoder = sentence_encoder(backbone, pooler="mean")
    return encoder, export(encoder, tmp_path_factory.mktemp("bare") / "bundle", request.param), request.param


def moved(backbone, step):
    """A prompt that moves vectors by a tenth, or a trained [CLS] that moves them by ``step`` times as much."""
    if step is None:
        prompt = new_prompt("key_value", backbone, length=1)
        return sentence_encoder(backbone, prompt, pooler="mean", position_shift=False)
    encoder = sentence_encoder(backbone, None, pooler="mean", cls=True)
    with torch.no_grad():
        encoder.cls.add_(step * torch.randn(encoder.cls.shape, generator=torch.Generator().manual_seed(0)))
    return encoder


@pytest.mark.parametrize(("step", "least", "most"), [(None, 0.05, 0.4), (0.005, 1e-3, 9e-3)])
def test_the_bare_backbones_bundle_is_not_the_checkpoints(bare, tmp_path, step, least, most):
    plain, wrong, precision = bare
    facts = check_parity(plain, wrong, SENTENCES, tolerance=1e-5, precision=precision)
    assert "of_training" not in facts, "without training there is nothing to look for"
    assert facts.keys() >= ({"mean_cosine", "neighbours"} if precision == "int8" else {"tolerance"})
    encoder = moved(plain.backbone, step)
    expected = encoder.encode(SENTENCES)
    change = sizes(expected - plain.encode(SENTENCES)).max()
    assert least < change < most, "these prompts move the vectors a little"
    right = export(encoder, tmp_path / "right", precision)
    if precision == "int8" and step:
        said = refusal(check_parity, encoder, right, SENTENCES, tolerance=1e-5, precision=precision)
        assert re.search(r"int8 moves vectors \d+\.\d times as far as training|hold -?\d+ %", said)
        return
    assert sizes(right.encode(SENTENCES) - expected).max() < OWN_ERROR[precision]
    found = check_parity(encoder, right, SENTENCES, tolerance=1e-5, precision=precision)
    assert found["of_training"] == pytest.approx(1, abs=0.25)
    if precision == "int8":
        assert (wrong.encode(SENTENCES) * expected).sum(axis=1).mean() > 0.99, "cosines alone would let it pass"
    said = refusal(check_parity, encoder, wrong, SENTENCES, tolerance=1e-5, precision=precision)
    assert re.search(r"differs from torch by|hold -?\d+ % of what training changed", said)


class Fixed:
    """Vectors by text, so narrow that any two of them have a cosine above 0.98."""

    provider = "cpu"

    def __init__(self, error=0.0, other=False, alone=0.0):
        self.error, self.other, self.alone = error, other, alone  # the last is off where a text stands alone

    def encode(self, sentences, **_):
        rows = []
        for text in sentences:
            seed = sum(map(ord, text)) + self.other
            random = np.random.default_rng(seed)
            rows.append(np.full(64, 1.0) + 0.1 * random.normal(size=64) + self.error * random.normal(size=64))
        unit = np.stack(rows) / np.linalg.norm(rows, axis=1, keepdims=True)
        return (unit + (self.alone if len(rows) == 1 else 0.0)).astype(np.float32)


def test_each_precision_has_its_own_bound():
    def ask(error, precision, **more):
        return check_parity(Fixed(), Fixed(error, **more), SENTENCES, tolerance=1e-5, precision=precision)

    assert ask(1e-3, "fp16")["largest_difference"] > 1e-4
    assert ask(0.02, "int8")["neighbours"] > 0.9
    for off in (1e-4, float("nan")):
        assert "differs from torch by" in refusal(ask, 0.0, "fp32", alone=off), "of a text alone"
    for error, precision, other, said in (
        (0.02, "fp16", False, r"export\.precision: .* more than 1e-02"),
        (1e-3, "fp32", False, r"export\.tolerance: .* more than 1e-05"),
        (0.4, "int8", False, r"mean cosine of 0\.\d+ .*nearest neighbours"),
        (0.0, "int8", True, r"mean cosine of 0\.99\d .* and -?0\.[0-5]\d of its nearest neighbours"),  # of other texts
    ):
        assert re.search(said, refusal(ask, error, precision, other=other))


# ---- rounded graphs -------------------------------------------------------------------------------------------------


@pytest.fixture
def encoder(bert):
    return sentence_encoder(bert, new_prompt("key_value", bert, length=5, init_std=0.7), pooler="mean")


def test_half_precision_takes_half_the_space_and_keeps_norms_in_float32(encoder, tmp_path):
    for precision in ("fp32", "fp16"):
        bundle_of(encoder, tmp_path / precision, precision=precision)
    graphs = {name: onnx.load(tmp_path / name / MODEL).graph for name in ("fp16", "fp32")}
    sizes = {name: sum(len(weight.raw_data) for weight in graph.initializer) for name, graph in graphs.items()}
    assert sizes["fp16"] < 0.6 * sizes["fp32"]
    types = {weight.name: weight.data_type for weight in graphs["fp16"].initializer}
    norms = [node for node in graphs["fp16"].node if node.op_type == "LayerNormalization"]
    assert norms and {types.get(name, 1) for node in norms for name in node.input[1:]} == {onnx.TensorProto.FLOAT}


def test_bound_memory_gives_the_same_from_several_threads(encoder, tmp_path):
    onnx_encoder = bundle_of(encoder, tmp_path / "bundle")
    expected = onnx_encoder.encode(FEW)
    onnx_encoder._graph = OnnxruntimeGraph(onnx_encoder._graph.session, "cpu")  # as on a GPU, whose memory is not here
    with ThreadPoolExecutor(4) as threads:
        for vectors in threads.map(lambda _: onnx_encoder.encode(FEW), range(4)):
            np.testing.assert_array_equal(vectors, expected)


@pytest.mark.parametrize("beside", [False, True])
def test_products_with_weights_are_of_integers_and_the_rest_is_not(encoder, tmp_path, monkeypatch, beside):
    if beside:  # as the weights of every larger model
        monkeypatch.setattr(graph_module, "EXTERNAL_DATA_BYTES", 1000)
    bundle_of(encoder, tmp_path / "fp32")
    rounded = bundle_of(encoder, tmp_path / "int8", precision="int8", texts=FEW)
    company = ["cat " * 40, *FEW]  # a vector does not depend on the texts beside it
    alone = np.stack([rounded.encode([text])[0] for text in company])
    np.testing.assert_allclose(rounded.encode(company, batch_size=64), alone, rtol=0, atol=1e-6)
    graphs = {name: onnx.load(tmp_path / name / MODEL).graph for name in ("fp32", "int8")}
    kinds = {name: [node.op_type for node in graph.node] for name, graph in graphs.items()}
    layers = encoder.backbone.layers
    for kind in ("MatMul", "Attention", "LayerNormalization"):
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


class Scored:
    """Has the same vector for a text each time; ``noise`` moves it, that of queries alone where it has a query side."""

    def __init__(self, noise: float, side: str = "both") -> None:
        self.noise, self.side = noise, side

    def encode(self, sentences, *, role=None, **_):
        logging.getLogger("cse").warning("long texts were cut")
        first, other = (
            np.stack([np.random.default_rng(sum(map(ord, text))).normal(size=8) for text in texts])
            for texts in ([text.removesuffix(".") for text in sentences], [f"{text}noise" for text in sentences])
        )
        vectors = first + (self.noise if role or self.side == "both" else 0.0) * other
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_the_loss_of_score_is_recorded_and_refused_where_there_is_something_to_score(capsys):
    first, second = ([f"{side} {number * 7919}" for number in range(60)] for side in ("left", "other"))
    gold = (Scored(0.0).encode(first) * Scored(0.0).encode(second)).sum(axis=1).astype(float)
    pairs = ScoredPairs("own", first, second, gold)
    found = check_score(Scored(0.0), Scored(0.1), [pairs], 50.0)
    assert 0 < found["score_loss"] < 50
    assert f"STS: torch 100.00, bundle {100 - found['score_loss']:.2f}, loss" in capsys.readouterr().out
    assert check_score(Scored(0.0), Scored(1.0), [], 0.3) == {}
    assert "judged by the vectors alone" in capsys.readouterr().err
    labelled = LabelledTexts("intents", first[:20], ["a", "b"] * 10, first[20:30], ["a", "b"] * 5)
    assert check_score(Scored(0.0), Scored(0.0), [labelled], 0.3) == {"score_loss": 0.0}
    assert "intents kNN: torch " in capsys.readouterr().out, "without scored pairs, one's own task"
    places = np.arange(30)
    documents = [f"{text}." for text in first[:30]]
    search = Retrieval("faq", first[:30], documents, places, places, np.ones(30, np.int64))
    said = refusal(check_score, Scored(0.0), Scored(9.0), [search], 0.3)
    assert re.search(r"export\.precision: .* loses \d\d\.\d\d points of faq nDCG@10, more than .* allows, 6\.67;", said)


def test_texts_of_the_mix_judge_queries_too_and_nothing_is_said_of_their_length(capsys, caplog):
    found = check_mixed(Scored(0.0, "query"), Scored(0.0, "query"))
    assert found == {"mixed_mean_cosine": 1.0, "mixed_neighbours": 1.0}
    assert "mean cosine with torch 1.000" in capsys.readouterr().out
    said = refusal(check_mixed, Scored(0.0, "query"), Scored(1.0, "query"))
    assert "int8 keeps of numbers, codes, other scripts and single words a mean cosine" in said
    assert not caplog.records and logging.getLogger("cse").isEnabledFor(logging.WARNING)
