"""The sketch of a bundle's vectors: written with it, listed, the same each time; older bundles do without."""

from __future__ import annotations

import numpy as np
import pytest

from cse.errors import CseError
from cse.export.bank import make_domain, with_sketch
from cse.export.bundle import write_bundle
from cse.export.domains import add_domain
from cse.runtime.bank import Bank
from cse.runtime.bundle import sha256, verify
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.sketch import SKETCH, read_sketch, sketch_of
from tests.export.banks import make_bank, make_encoder
from tests.export.systems import SENTENCES


def with_sketch_of(encoder, folder, texts):
    with write_bundle(encoder, folder, normalize=False, metrics={}) as draft:
        draft.sketch = sketch_of(OnnxEncoder(draft.folder, provider="cpu").encode(texts, normalize=True))
    return folder


def test_the_bundle_lists_the_sketch_and_loads(encoder, tmp_path):
    folder = with_sketch_of(encoder, tmp_path / "bundle", SENTENCES)
    entry = verify(folder).files[SKETCH]
    assert entry == {"sha256": sha256(folder / SKETCH), "bytes": (folder / SKETCH).stat().st_size}
    found = read_sketch(folder / SKETCH, encoder.dimension)
    vectors = encoder.encode(SENTENCES, normalize=True).astype(np.float64)
    np.testing.assert_allclose(found.mean, vectors.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.variance, vectors.var(axis=0, ddof=1), atol=1e-5)
    assert found.count == len(SENTENCES)
    again = with_sketch_of(encoder, tmp_path / "again", SENTENCES)
    assert (again / SKETCH).read_bytes() == (folder / SKETCH).read_bytes()


def test_a_damaged_sketch_is_a_damaged_bundle(encoder, tmp_path):
    folder = with_sketch_of(encoder, tmp_path / "bundle", SENTENCES)
    content = bytearray((folder / SKETCH).read_bytes())
    content[-1] ^= 1
    (folder / SKETCH).write_bytes(content)
    with pytest.raises(CseError, match=r"sketch\.safetensors: does not match"):
        OnnxEncoder(folder, provider="cpu")


def test_an_older_bundle_has_none_and_is_valid(first_row):
    assert SKETCH not in verify(first_row.folder).files


# ---- a bank ---------------------------------------------------------------------------------------------------------


def test_a_domain_keeps_its_sketch_and_its_identity(tiny_folders, empty_banks, tmp_path):
    folder = make_bank(tmp_path / "bank", empty_banks("bert"), {})
    onnx = OnnxEncoder(folder, provider="cpu")
    plain = make_domain(make_encoder(tiny_folders["bert"], "plain"), "plain")
    vectors = onnx.encode(SENTENCES, domain=plain, normalize=True)
    sketched = with_sketch(plain, sketch_of(vectors))
    add_domain(folder, sketched)
    found = Bank(folder).domain("plain")
    np.testing.assert_allclose(found.sketch_mean, vectors.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.sketch_variance, vectors.var(axis=0, ddof=1), atol=1e-6)
    assert found.sketch_count.tolist() == [len(SENTENCES)]
    assert found.identity() == plain.identity(), "its vectors are the same"
    np.testing.assert_array_equal(onnx.encode(SENTENCES, domain="plain"), onnx.encode(SENTENCES, domain=plain))


def test_a_domain_without_one_has_the_bytes_it_had_before(tiny_folders, tmp_path):
    domain = make_domain(make_encoder(tiny_folders["bert"], "plain"), "plain")
    domain.write(tmp_path / "plain.safetensors")
    assert b"sketch" not in (tmp_path / "plain.safetensors").read_bytes()
    assert domain.tensors().keys() == domain.facts.hashes.keys()


def test_half_a_sketch_is_refused(tiny_folders, empty_banks, tmp_path):
    folder = make_bank(tmp_path / "bank", empty_banks("bert"), {})
    sketch = sketch_of(np.random.default_rng(0).normal(size=(9, 32)))
    whole = with_sketch(make_domain(make_encoder(tiny_folders["bert"], "plain"), "plain"), sketch)
    del whole.facts.hashes["sketch_count"]
    object.__setattr__(whole, "sketch_count", None)
    with pytest.raises(CseError, match="its tensors are not those"):
        add_domain(folder, whole)
