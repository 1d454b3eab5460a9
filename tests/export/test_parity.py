"""Parity is a claim about the checkpoint: the bundle of the bare backbone, the nearest wrong thing, fails it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from cse.export.parity import check_parity
from cse.model.post import fit_discriminant
from tests.export.exports import bundle_of
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.tiny import WORDS

_RANDOM = np.random.default_rng(2)
SENTENCES = [" ".join(_RANDOM.choice(WORDS, int(count))) for count in _RANDOM.integers(3, 15, 60)]
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


def test_a_head_is_held_in_every_precision_and_one_of_less_shrinkage_is_not(bare, tmp_path):
    plain, own, precision = bare
    facts = check_parity(plain, own, SENTENCES, tolerance=1e-5, precision=precision)
    assert "of_training" not in facts, "without training there is nothing to look for"
    assert facts.keys() >= ({"mean_cosine", "neighbours"} if precision == "int8" else {"tolerance"})
    vectors, labels = plain.encode(SENTENCES, normalize=False), [str(row % 6) for row in range(len(SENTENCES))]
    right, other = (sentence_encoder(plain.backbone, pooler="mean") for _ in range(2))
    right.post = fit_discriminant(vectors, labels, 0.3)
    other.post = fit_discriminant(vectors, labels, 0.01)
    onnx = export(right, tmp_path / "right", precision)
    assert onnx.encode(SENTENCES).shape == (60, 5)
    most = {"fp32": 1e-5, "fp16": 0.01, "int8": 0.15}[precision]  # mean size of the error of unit vectors
    differences = [sizes(onnx.encode(SENTENCES) - each.encode(SENTENCES)).mean() for each in (right, other)]
    assert differences[0] < most < differences[1]


class Fixed:
    """Vectors by text, so narrow that any two of them have a cosine above 0.98."""

    provider = "cpu"

    def __init__(self, error=0.0, other=False):
        self.error, self.other = error, other

    def encode(self, sentences, **_):
        rows = []
        for text in sentences:
            seed = sum(map(ord, text)) + self.other
            random = np.random.default_rng(seed)
            rows.append(np.full(64, 1.0) + 0.1 * random.normal(size=64) + self.error * random.normal(size=64))
        return (np.stack(rows) / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_each_precision_has_its_own_bound():
    def ask(error, precision, **more):
        return check_parity(Fixed(), Fixed(error, **more), SENTENCES, tolerance=1e-5, precision=precision)

    assert ask(1e-3, "fp16")["largest_difference"] > 1e-4
    assert ask(0.02, "int8")["neighbours"] > 0.9
    for error, precision, other, said in (
        (0.02, "fp16", False, r"export\.precision: .* more than 1e-02"),
        (1e-3, "fp32", False, r"export\.tolerance: .* more than 1e-05"),
        (0.4, "int8", False, r"mean cosine of 0\.\d+ .*nearest neighbours"),
        (0.0, "int8", True, r"mean cosine of 0\.99\d .* and -?0\.[0-5]\d of its nearest neighbours"),  # of other texts
    ):
        assert re.search(said, refusal(ask, error, precision, other=other))
