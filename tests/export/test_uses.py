"""Task texts and shorter vectors in a bundle."""

from __future__ import annotations

import numpy as np
import pytest

from cse.errors import CseError
from cse.export.bundle import write_bundle
from cse.model.declared import Declared
from cse.runtime.bundle import Manifest, read_manifest
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.parts import new_prompt, sentence_encoder

SENTENCES = ["red bird", "", "a small dog sleeps on the mat"] * 6  # enough to share out


@pytest.fixture
def bundle(bert, tmp_path):
    prompt = new_prompt("key_value", bert, length=3, init_std=0.7)
    encoder = sentence_encoder(bert, prompt, use=Declared(None, 20, {"query": "the old house "}, (8, 16)))
    with write_bundle(encoder, tmp_path / "bundle", normalize=True, metrics={}):
        pass
    return encoder, tmp_path / "bundle"


def test_the_bundle_does_as_torch(bundle):
    encoder, folder = bundle
    onnx = OnnxEncoder(folder, provider="cpu")
    given = {"role": "query", "dimensions": 8}
    np.testing.assert_allclose(onnx.encode(SENTENCES, **given), encoder.encode(SENTENCES, **given), atol=1e-5)
    assert (onnx.texts, onnx.widths) == (encoder.texts, [8, 16])
    with pytest.raises(CseError, match="role: 'passage' is not known; one of query"):
        onnx.encode("a dog", role="passage")
    with pytest.raises(CseError, match="dimensions: 9; this model gives 8, 16, 32"):
        onnx.encode("a dog", dimensions=9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"widths": [0]}, "widths are not those of a model of 32 dimensions"),
        ({"widths": [33]}, "widths are not those of a model of 32 dimensions"),
        ({"widths": ["8"]}, r"'widths' should be list\[int\], found"),
    ],
)
def test_a_manifest_with_an_impossible_use_is_refused(bundle, wrong, message):
    _, folder = bundle
    Manifest(**vars(read_manifest(folder)) | wrong).write(folder)
    with pytest.raises(CseError, match=message):
        read_manifest(folder)
