"""A bank gives what each domain's own encoder and bundle give, however domains are mixed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.model.declared import Declared
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.banks import check_mixed, make_bank, make_encoder, make_encoders, padded
from tests.export.conftest import build
from tests.export.systems import SENTENCES
from tests.parts import new_prompt, refusal, sentence_encoder
from tests.tiny import DECLARED, WORDS

_LONG = " ".join(WORDS + WORDS)  # beyond every domain's maximum length


@pytest.fixture(scope="module", params=["bert", "roberta"])
def banked(request, tiny_folders, empty_banks, tmp_path_factory):
    """A bank and the encoders that its domains came from, by name."""
    encoders = make_encoders(tiny_folders[request.param])
    return make_bank(tmp_path_factory.mktemp("bank") / "bank", empty_banks(request.param), encoders), encoders


def test_mixed_batches_equal_each_domains_own_encoder(banked):
    bank, encoders = banked
    check_mixed(bank, encoders, [*SENTENCES, _LONG])
    found = np.stack([padded(encoder.encode("the cat")) for encoder in encoders.values()])
    assert len(np.unique(found.round(3), axis=0)) == len(encoders), "domains must differ for a mix-up to show"


def test_each_domain_has_its_own_default_of_normalisation(tiny_folders, empty_banks, tmp_path):
    encoder = make_encoder(tiny_folders["bert"], "plain")
    bank = make_bank(tmp_path / "bank", empty_banks("bert"), {"unit": encoder})
    add_domain(bank, make_domain(encoder, "raw", normalize=False))
    onnx, texts, names = OnnxEncoder(bank, provider="cpu"), ["the cat"] * 2, ["unit", "raw"]
    unit, raw = onnx.encode(texts, domain=names)
    assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(raw, encoder.encode("the cat", normalize=False), atol=2e-5)
    for normalize, expected in ((True, unit), (False, raw)):
        np.testing.assert_allclose(onnx.encode(texts, domain=names, normalize=normalize), [expected] * 2, atol=2e-5)


def test_a_domains_vectors_have_its_own_width_and_in_company_end_in_zeros(banked):
    onnx, texts = OnnxEncoder(banked[0], provider="cpu"), ["the cat sits", "a dog"]
    alone = onnx.encode(texts, domain="headed")
    assert (alone.shape, onnx.of("headed").dimension, onnx.dimension) == ((2, 5), 5, 32)
    together = onnx.encode([*texts, *texts], domain=["headed", "headed", "plain", "mapped"])
    np.testing.assert_allclose(together[:2, :5], alone, atol=1e-6)
    assert not together[:2, 5:].any() and together[2:, 5:].all()
    np.testing.assert_allclose(together[:2] @ together[:2].T, alone @ alone.T, atol=1e-6)
    assert onnx.encode([], domain="plain").shape == onnx.encode([], domain=[]).shape == (0, 32)
    assert onnx.encode([], domain="headed").shape == (0, 5)


@pytest.mark.parametrize(
    ("prompt", "own", "expected"), [(2, None, 37), (5, None, 35), (2, 38, 38), (5, 38, 35), (5, 9, 9)]
)
def test_a_prompt_shortens_texts_only_where_positions_end(bert, empty_banks, tmp_path, prompt, own, expected):
    """40 positions and a declared length of 37 tokens, or one of the settings."""
    if own:
        bert.declared = dataclasses.replace(bert.declared, max_length=own)
    encoder = sentence_encoder(bert, new_prompt("key_value", bert, length=prompt, init_std=0.7), pooler="mean")
    assert (encoder.shift, encoder.max_length) == (prompt, expected)
    bank = make_bank(tmp_path / "bank", empty_banks("bert"), {"it": encoder})
    onnx = OnnxEncoder(bank, provider="cpu")
    counted = onnx.encode_counting([_LONG], domain="it")
    assert (counted.max_length, counted.truncated) == (expected, 1)
    np.testing.assert_allclose(counted.embeddings, encoder.encode([_LONG]), atol=1e-5)
    shorter = encoder.encode_counting([_LONG], max_length=expected - 1).embeddings
    assert not np.allclose(counted.embeddings, shorter, atol=1e-4), "each token counts"
    assert onnx.max_length == DECLARED, "what the backbone declares"


def test_nothing_is_encoded_without_saying_whose_prompts(banked, exports):
    onnx, one = OnnxEncoder(banked[0], provider="cpu"), exports("bert key_value mean")
    for encoder, texts, domain, said in (
        (onnx, ["the cat"], None, "say whose prompts"),
        (onnx, ["the cat"], "plane", "no domain 'plane'; did you mean 'plain'"),
        (onnx, ["the cat"], ["plain", "bare"], "2 names for 1 sentences"),
        (onnx, ["the cat", "a dog"], ["plain", None], "domain[1]: expected a name, found NoneType"),
        (onnx, ["the cat"], "auto", "added with their text"),
        (one.open(), ["the cat"], "plain", "bundle of one model"),
        (one.encoder, ["the cat"], "plain", "one model"),
    ):
        assert said in refusal(encoder.encode, texts, domain=domain)
    said = refusal(SentenceEncoder.load, banked[0])
    assert "an ONNX bundle or a bank; name the checkpoint it was made of" in said


REFUSED = [
    ("bert input cls", "input-layer prompt"),
    ("bert hidden_state block1", "pooler mean_first_last"),
    ("bert template mask lora", "low-rank updates"),
    ("roberta template denoised", "a template puts words around the sentence"),
    ("roberta flow mlp", "post-processing (flow)"),
    ("bert cls prompt cnn", "pooler cnn"),
]


def test_what_a_bank_cannot_hold_is_refused_by_name(tiny_folders, bert):
    widths = sentence_encoder(bert, new_prompt("key_value", bert, length=2), use=Declared(None, 20, {}, (8, 16)))
    made = [(build(tiny_folders, row), reason) for row, reason in REFUSED]
    for encoder, reason in [*made, (widths, "it has shorter vectors (8, 16), and a bank has none")]:
        said = refusal(make_domain, encoder, "it")
        assert said.startswith("domain it: ") and reason in said and "export it as a bundle" in said
