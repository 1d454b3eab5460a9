"""A bundle's manifest and its classifier: read back, and refused in one line where they do not fit."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from cse.runtime.bundle import MANIFEST, MODEL, TOKENIZER, read_manifest, verify
from cse.runtime.classifier import CLASSIFIER, Classifier, ClassifierFacts, read_classifier
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.parts import refusal

from .conftest import DIMENSION, edit


def test_a_whole_bundle_is_read_back_and_an_edit_by_hand_is_noticed(bundle):
    manifest = verify(bundle)
    assert (manifest.domain.width, manifest.domain.pooler, manifest.domain.normalize) == (DIMENSION, "mean", True)
    assert manifest.metrics == {"STS-B": 80.0}
    assert set(manifest.files) == {MODEL, TOKENIZER}
    edit(bundle, later_addition=1)
    assert read_manifest(bundle) == manifest
    path = bundle / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text())))  # written anew, it says the same
    assert read_manifest(bundle) == manifest
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_length": 5}))
    assert "bundle.json: changed since it was written" in refusal(read_manifest, bundle)


@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_a_file_that_changed_is_named(bundle, name):
    whole = (bundle / name).read_bytes()
    for changed in (whole[:-1], whole[:99] + bytes([whole[99] ^ 1]) + whole[100:]):
        (bundle / name).write_bytes(changed)
        for read in (OnnxEncoder, verify):
            assert f"{name}: does not match bundle.json" in refusal(read, bundle)
    (bundle / name).unlink()
    for read in (OnnxEncoder, verify):
        assert f"{name}: missing, though bundle.json lists it" in refusal(read, bundle)


HASH = "0" * 64
LISTED = dict.fromkeys((MODEL, TOKENIZER), HASH)
SIZES = {"name": "", "words": 8, "layers": 1, "heads": 1, "head_size": 8, "positions": 6}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "x" * 10**6}, r"format 'x{39}\.\.\., this version reads 5; export the bundle, or create"),
        ({"pooler": None}, "key 'pooler' is missing"),
        ({"dimension": 10**4000}, r"dimension is 10+\.\.\., not between"),
        ({"widths": [9]}, "widths are not those of a model of 8 dimensions"),
        ({"pad_id": -1}, "pad_id is -1, not between 0"),
        ({"files": []}, "files is not a table of names"),
        ({"files": {MODEL: LISTED[MODEL]}}, "files does not list tokenizer.json"),
        ({"kind": "record"}, "kind is 'record', not bundle or bank"),
        ({"domain": []}, "'domain' should be DomainFacts, found list"),
        ({"name": ""}, "layers is 0, not between 1 and 1000000"),
        (SIZES, "files does not list domains/model.safetensors"),
        ({"files": LISTED | {MODEL: ""}}, "files does not list model.onnx"),
        *[({"files": LISTED | {MODEL: hash}}, "entry 'model.onnx' is not valid") for hash in ("0", [HASH])],
        *[({"files": LISTED | {name: HASH}}, "is not valid") for name in ("..", "/etc/passwd", "a/../x", "a\0b", "")],
    ],
)
def test_manifest_with_a_mistake_is_refused(bundle, changes, message):
    edit(bundle, **changes)
    said = refusal(verify, bundle)
    assert re.search(message, said) and len(said) < 400


@pytest.mark.parametrize(
    "text", ["{", "[]", "\xff", '{"a":' * 100_000, '{"format": ' + "1" * 5000 + "}"], ids=lambda t: t[:9]
)
def test_a_manifest_that_is_no_json_object_is_one_line(bundle, text):
    (bundle / MANIFEST).write_bytes(text.encode("latin-1"))
    assert re.search(r"bundle\.json: (not valid JSON|expected an object)", refusal(read_manifest, bundle))


FACTS = ClassifierFacts(["a", "b", "c"], names=True, rows=9, accuracy=0.9, threshold=0.6, false_alarms=0.05)


def test_it_comes_back_as_it_was_and_tells_the_unknown(tmp_path):
    ours = Classifier(FACTS, np.eye(3, 5, dtype=np.float32) * 4, np.array([0, 0, 1], np.float32))
    ours.write(tmp_path)
    found = read_classifier(tmp_path, 5)
    assert found.facts == FACTS
    near, between = np.eye(2, 5, dtype=np.float32)[0], np.full(5, 0.2, np.float32)
    first, second = found.classify(np.stack([near, between]))
    chance = np.exp([4, 0, 1]) / np.exp([4, 0, 1]).sum()
    assert (first.label, first.known, second.label, second.known) == ("a", True, "c", False)
    assert first.probability == pytest.approx(chance[0], abs=1e-6)
    np.testing.assert_allclose(found.probabilities(near[None])[0], chance, atol=1e-6)


@pytest.mark.parametrize(
    ("facts", "weight", "said"),
    [
        ("{", (3, 5), "no classifier"),
        ("[]", (3, 5), "no object"),
        (None, (3, 5), "no classifier"),
        ('{"labels": ["a", "b"], "names": true}', (3, 5), "not those of 2 labels in 5 dimensions"),
        ('{"labels": ["a", "b", "c"], "names": true}', (3, 4), "not those of 3 labels in 5 dimensions"),
        ('{"labels": ["a", "b", "c"], "names": true, "threshold": 7.0}', (3, 5), "threshold is 7.0"),
        ('{"labels": "abc", "names": true}', (3, 5), "'labels' should be list"),
    ],
)
def test_another_file_is_refused_in_a_line(tmp_path, facts, weight, said):
    tensors = {"weight": np.zeros(weight, np.float32), "bias": np.zeros(3, np.float32)}
    save_file(tensors, tmp_path / CLASSIFIER, None if facts is None else {"cse": facts})
    assert re.search(f"{re.escape(CLASSIFIER)}: .*{said}", refusal(read_classifier, tmp_path, 5))
