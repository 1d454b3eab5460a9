"""A bank gives what each domain's own encoder and bundle give, however domains are mixed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cse.errors import CseError
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
    said = refusal(SentenceEncoder.load, bank)
    assert "an ONNX bundle or a bank; load it with cse.OnnxEncoder, a bank also with cse.BankEncoder" in said


def test_one_domain_and_raw_vectors(banked):
    bank, encoders = banked
    onnx = OnnxEncoder(bank, provider="cpu")
    for name, encoder in encoders.items():
        raw = onnx.encode(SENTENCES, domain=name, normalize=False)
        np.testing.assert_allclose(raw, encoder.encode(SENTENCES, normalize=False), atol=2e-5)
        np.testing.assert_allclose(np.linalg.norm(onnx.encode(SENTENCES, domain=name), axis=1), 1, atol=1e-5)


def test_each_domain_has_its_own_default_of_normalisation(tiny_folders, empty_banks, tmp_path):
    encoder = make_encoder(tiny_folders["bert"], "plain")
    bank = make_bank(tmp_path / "bank", empty_banks("bert"), {"unit": encoder})
    add_domain(bank, make_domain(encoder, "raw", normalize=False))
    onnx, texts, names = OnnxEncoder(bank, provider="cpu"), ["the cat"] * 2, ["unit", "raw"]
    forced = onnx.encode(texts, domain=names, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(forced, axis=1), 1, rtol=1e-5)
    unit, raw = onnx.encode(texts, domain=names)
    assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(raw, encoder.encode("the cat", normalize=False), atol=2e-5)


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


def test_truncation_is_each_domains_own(banked):
    bank, encoders = banked
    lengths = {encoder.max_length for encoder in encoders.values()}
    assert len(lengths) > 2
    counted = OnnxEncoder(bank, provider="cpu").encode_counting([_LONG, "cat"] * 2, domain=["plain"] * 2 + ["bare"] * 2)
    assert (counted.truncated, counted.distinct) == (2, 4)
    assert counted.max_length == encoders["plain"].max_length
    assert counted.domains == ["plain", "plain", "bare", "bare"]


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


def test_auto_takes_the_domain_whose_text_is_nearest(tiny_folders, empty_banks, tmp_path):
    encoders = {name: make_encoder(tiny_folders["bert"], name, seed) for seed, name in enumerate(("plain", "hidden"))}
    bank = make_bank(tmp_path / "bank", empty_banks("bert"), encoders)
    onnx = OnnxEncoder(bank, provider="cpu")
    with pytest.raises(CseError, match="added with their text"):
        onnx.encode(["the cat"], domain="auto")
    texts = {"plain": ["the cat sits", "a small dog"], "hidden": ["music near the river", "never no bread"]}
    for name, encoder in encoders.items():
        centres = onnx.encode(texts[name], domain=onnx.bank.bare, normalize=True)
        add_domain(bank, make_domain(encoder, name, centres=centres), replace=True)
    mixed = [texts["hidden"][1], texts["plain"][0], texts["hidden"][0], texts["plain"][1], "the cat"]
    counted = onnx.encode_counting(mixed, domain=["auto"] * 4 + ["hidden"])
    assert counted.domains == ["hidden", "plain", "hidden", "plain", "hidden"]
    np.testing.assert_array_equal(counted.embeddings, onnx.encode(mixed, domain=counted.domains))


def test_nothing_is_encoded_without_saying_whose_prompts(banked, exports):
    bank, _ = banked
    onnx = OnnxEncoder(bank, provider="cpu")
    for texts, domain, reason in (
        (["the cat"], None, "say whose prompts.*headed"),
        (["the cat"], "plane", "no domain 'plane'; did you mean 'plain'"),
        (["the cat"], ["plain", "bare"], "2 names for 1 sentences"),
        (["the cat", "a dog"], ["plain", None], r"domain\[1\]: expected a name, found NoneType"),
    ):
        with pytest.raises(CseError, match=reason):
            onnx.encode(texts, domain=domain)
    with pytest.raises(CseError, match="bundle of one model"):
        exports("bert key_value mean").open().encode(["the cat"], domain="plain")
    with pytest.raises(CseError, match="one model"):
        make_encoder(exports("bert key_value mean").encoder.backbone.files.folder, "bare").encode("a", domain="plain")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("bert input cls", "input-layer prompt"),
        ("bert hidden_state block1", "pooler mean_first_last"),
        ("bert template mask lora", "low-rank updates"),
        ("roberta template denoised", "a template puts words around the sentence"),
        ("roberta flow mlp", r"post-processing \(flow\)"),
        ("bert cls prompt cnn", "pooler cnn"),
    ],
)
def test_what_a_bank_cannot_hold_is_refused_by_name(tiny_folders, row, reason):
    with pytest.raises(CseError, match=f"domain it: .*{reason}.*export it as a bundle"):
        make_domain(build(tiny_folders, row), "it")


def test_a_model_with_widths_is_refused(bert):
    encoder = sentence_encoder(bert, new_prompt("key_value", bert, length=2), use=Declared(None, 20, {}, (8, 16)))
    assert "domain it: it has shorter vectors (8, 16), and a bank has none; exp" in refusal(make_domain, encoder, "it")
