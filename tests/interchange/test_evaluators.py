"""sentence-transformers' evaluators on our encoders as they are, against the same evaluators on its own model."""

import json

import numpy as np
import pytest
import torch

from cse.errors import CseError
from cse.model.declared import Declared
from tests.export.exports import bundle_of
from tests.parts import backbone_of, sentence_encoder
from tests.tiny import WORDS, make_backbone_folder

library = pytest.importorskip("sentence_transformers")
evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

TEXTS = {"query": "the old ", "document": "a red "}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """The library's model of a tiny BERT, and ours, as torch and as ONNX."""
    root = tmp_path_factory.mktemp("model")
    folder = make_backbone_folder(root / "bert", "bert", pooling="mean")
    encoder = sentence_encoder(backbone_of(folder), use=Declared("mean", None, TEXTS, (8, 16)))
    onnx = bundle_of(encoder, root / "bundle")
    known = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(known))
    parts = [modules.Transformer(str(folder)), modules.Pooling(32, "mean"), modules.Normalize()]
    theirs = library.SentenceTransformer(modules=parts, prompts=TEXTS, device="cpu")
    return theirs, {"torch": encoder, "onnx": onnx}


def texts(count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, int(rng.integers(2, 8)))) for _ in range(count)]


A, B, C = texts(30, 0), texts(30, 1), texts(30, 2)
RELEVANT = {f"q{i}": {f"d{i}", f"d{(7 * i) % 30}"} for i in range(30)}
QUERIES, DOCUMENTS = ({f"{side}{i}": text for i, text in enumerate(texts)} for side, texts in (("q", A), ("d", B)))


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_an_evaluator_says_of_ours_what_it_says_of_theirs(encoders, kind):
    theirs, ours = encoders
    for evaluator in (
        evaluation.EmbeddingSimilarityEvaluator(A, B, np.linspace(0, 1, 30).tolist(), name="x", truncate_dim=8),
        evaluation.TripletEvaluator(A, B, C, name="x"),
        evaluation.InformationRetrievalEvaluator(QUERIES, DOCUMENTS, RELEVANT, name="x"),
    ):
        expected, found = dict(evaluator(theirs)), dict(evaluator(ours[kind]))
        assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_the_librarys_words_mean_ours(encoders, kind):
    encoder = encoders[1][kind]
    words = {"prompt_name": "query", "truncate_dim": 8, "normalize_embeddings": True, "convert_to_tensor": True}
    as_tensor = encoder.encode(A, **words)
    assert isinstance(as_tensor, torch.Tensor)
    np.testing.assert_array_equal(as_tensor.numpy(), encoder.encode(A, role="query", dimensions=8, normalize=True))
    raw = encoder.encode(A, normalize_embeddings=False)
    np.testing.assert_array_equal(raw, encoder.encode(A, normalize=False))
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=0.01)
    np.testing.assert_array_equal(encoder.encode_query(A), encoder.encode(A, role="query"))
    np.testing.assert_array_equal(encoder.encode_document(A[0]), encoder.encode("a red " + A[0]))
    np.testing.assert_array_equal(encoder.encode(A, prompt="a red "), encoder.encode(A, role="document"))
    for word in ({"precision": "int8"}, {"device": "cuda"}, {"output_value": "token_embeddings"}):
        with pytest.raises(CseError, match=f"{next(iter(word))}: .* is not possible here"):
            encoder.encode(A, **word)
    with pytest.raises(TypeError, match="nonsense"):
        encoder.encode(A, nonsense=1)
