import json

import pytest

from cse.errors import CseError
from cse.runtime.bundle import MANIFEST, MODEL, TOKENIZER, read_manifest, verify
from cse.runtime.onnx_encoder import OnnxEncoder

from .conftest import DIMENSION, edit


def test_a_whole_bundle_is_read_back(bundle):
    manifest = verify(bundle)
    assert (manifest.dimension, manifest.pooler, manifest.normalize) == (DIMENSION, "mean", True)
    assert manifest.metrics == {"STS-B": 80.0}
    assert set(manifest.files) == {MODEL, TOKENIZER}
    edit(bundle, later_addition=1)
    assert read_manifest(bundle) == manifest


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda whole: whole[:-1], r": does not match bundle\.json"),
        (lambda whole: whole[:99] + bytes([whole[99] ^ 1]) + whole[100:], r": does not match bundle\.json"),
        (None, ": missing, though bundle.json lists it"),
    ],
)
@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_a_file_that_changed_is_named(bundle, name, change, reason):
    whole = (bundle / name).read_bytes()
    (bundle / name).unlink() if change is None else (bundle / name).write_bytes(change(whole))
    for read in (OnnxEncoder, verify):
        with pytest.raises(CseError, match=name + reason):
            read(bundle)


def test_folder_without_a_manifest_is_no_bundle(bundle, tmp_path):
    (bundle / MANIFEST).unlink()
    for folder in (bundle, tmp_path / "absent", bundle / MODEL):
        with pytest.raises(CseError, match="no bundle here"):
            read_manifest(folder)


HASH = "0" * 64
LISTED = dict.fromkeys((MODEL, TOKENIZER), HASH)
SIZES = {"words": 8, "layers": 1, "heads": 1, "head_size": 8, "positions": 6}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "x" * 10**6}, r"format 'x{39}\.\.\., this version reads 4; export the bundle, or create"),
        ({"pooler": None}, "key 'pooler' is missing"),
        ({"dimension": "8"}, "'dimension' should be int, found str"),
        ({"dimension": 10**4000}, r"dimension is 10+\.\.\., not between"),
        ({"widths": [0]}, "widths are not those of a model of 8 dimensions"),
        ({"widths": [9]}, "widths are not those of a model of 8 dimensions"),
        ({"widths": ["8"]}, r"'widths' should be list\[int\], found"),
        ({"pad_id": -1}, "pad_id is -1, not between 0"),
        ({"files": []}, "files is not a table of names"),
        ({"files": {MODEL: LISTED[MODEL]}}, "files does not list tokenizer.json"),
        ({"kind": "record"}, "kind is 'record', not bundle or bank"),
        ({"side": "passage"}, "side is 'passage', not one of both, query"),
        ({"side": "query"}, "words is 0, not between 1 and 1000000"),
        ({"side": "query", **SIZES}, "files does not list domains/model.safetensors"),
        ({"files": LISTED | {MODEL: ""}}, "files does not list model.onnx"),
        *[({"files": LISTED | {MODEL: hash}}, "entry 'model.onnx' is not valid") for hash in ("0", [HASH])],
        *[
            ({"files": LISTED | {name: HASH}}, "is not valid")
            for name in ("..", "/etc/passwd", "a/../../x", "a\0b", "")
        ],
    ],
)
def test_manifest_with_a_mistake_is_refused(bundle, changes, message):
    edit(bundle, **changes)
    with pytest.raises(CseError, match=message) as caught:
        verify(bundle)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text", ["{", "[]", "\xff", '{"a":' * 100_000, "[" * 100_000, '{"format": ' + "1" * 5000 + "}"], ids=lambda t: t[:9]
)
def test_a_manifest_that_is_no_json_object_is_one_line(bundle, text):
    (bundle / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(CseError, match=r"bundle\.json: (not valid JSON|expected an object)") as caught:
        read_manifest(bundle)
    assert "\n" not in str(caught.value)


def test_an_edit_by_hand_is_noticed(bundle):
    path = bundle / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text())))  # written anew, it says the same
    read_manifest(bundle)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_length": 5}))
    with pytest.raises(CseError, match=r"bundle\.json: changed since it was written"):
        read_manifest(bundle)
