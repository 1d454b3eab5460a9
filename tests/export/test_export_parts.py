"""Templates, trained words, convolutions, projectors and post-processing are part of the bundle too."""

from __future__ import annotations

import numpy as np
import pytest

from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.checkpoint import save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from tests.export.exports import export
from tests.export.systems import SENTENCES, make_encoder
from tests.model.families import make_family_folder


def test_sentences_differ_from_each_other(either):
    """A template that ate its sentence would give equal vectors everywhere, and parity would hold."""
    found = either.open().encode(SENTENCES)
    assert (found @ found.T)[~np.eye(len(SENTENCES), dtype=bool)].max() < 0.9999


@pytest.mark.parametrize("row", ["roberta template denoised", "roberta trained template"])
def test_an_empty_text_less_its_noise_is_zero(exports, row):
    """Its rounding error, normalised, would be a direction of its own on every machine."""
    exported = exports(row)
    for encoder in (exported.encoder, exported.open()):
        found = encoder.encode(["", "a dog"])
        assert not found[0].any()
        assert np.linalg.norm(found[1]) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_a_decoders_template_travels_in_checkpoint_and_bundle(tmp_path):
    backbone = load_backbone(find_backbone(str(make_family_folder(tmp_path / "backbone", "llama"))))
    template = {"text": "the man reads {sentence} near the"}
    encoder = make_encoder(backbone, "key_value", pooler="last", template=template)
    (tmp_path / "checkpoint").mkdir()
    save_checkpoint(encoder, tmp_path / "checkpoint")
    loaded = SentenceEncoder.load(tmp_path / "checkpoint")
    bundle = export(loaded, tmp_path / "bundle").open()
    expected = encoder.encode(SENTENCES, normalize=False)
    for found in (loaded, bundle):
        np.testing.assert_allclose(found.encode(SENTENCES, normalize=False), expected, atol=1e-5)
    without = make_encoder(backbone, "key_value", pooler="last").encode(SENTENCES, normalize=False)
    assert np.abs(expected - without).max() > 0.1
