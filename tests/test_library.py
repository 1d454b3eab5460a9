"""The library from outside: a light import, and two encoders with the same interface."""

import textwrap

import numpy as np
import pytest

import cse
from cse.model.checkpoint import save_checkpoint
from tests.export.exports import export
from tests.export.systems import make_encoder
from tests.parts import backbone_of


@pytest.fixture(scope="module")
def encoders(tiny_folders, tmp_path_factory):
    """The same model, opened both ways."""
    folder = tmp_path_factory.mktemp("library")
    encoder = make_encoder(backbone_of(tiny_folders["bert"]), "key_value", pooler="mean")
    (folder / "checkpoint").mkdir()
    save_checkpoint(encoder, folder / "checkpoint")
    export(encoder, folder / "bundle")
    return cse.SentenceEncoder.load(folder / "checkpoint"), cse.OnnxEncoder(folder / "bundle", provider="cpu")


def test_the_use_that_the_package_shows(encoders, capsys):
    """A checkpoint stands in for the path."""
    code = textwrap.dedent(cse.__doc__.split("::\n")[1].split("\n\n``")[0]).strip()
    assert code.count('"data/checkpoint"') == 1
    exec(code.replace('"data/checkpoint"', repr(str(encoders[1].path.with_name("checkpoint")))), used := {})
    assert used["vectors"].shape == (3, 32)
    assert used["cosines"].shape == (1, 3)
    assert capsys.readouterr().out.strip() in used["sentences"]
    assert len([line for line in code.splitlines() if line]) == 6


@pytest.mark.parametrize("number", [0, 1], ids=["torch", "onnx"])
@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_similarity_of_sentences_and_of_embeddings(encoders, number, kind):
    encoder = encoders[number]
    left, right = ["the cat sits", "a dog"], ["dog", "the cat sits", "red apple"]
    cosines = encoder.similarity(kind(left), kind(right))
    assert (cosines.shape, cosines.dtype) == ((2, 3), np.float32)
    assert cosines[0, 1] == pytest.approx(1, abs=1e-5)
    raw = encoder.encode(left, normalize=False), encoder.encode(right, normalize=False)
    np.testing.assert_allclose(encoder.similarity(*raw), cosines, atol=1e-5)
    np.testing.assert_allclose(encoder.similarity(left, raw[1]), cosines, atol=1e-5)
    np.testing.assert_allclose(encoder.similarity(left[0], right), cosines[:1], atol=1e-5)
    np.testing.assert_allclose(encoder.similarity(raw[0].tolist(), raw[1]), cosines, atol=1e-5)
    assert encoder.similarity([], right).shape == (0, 3)
