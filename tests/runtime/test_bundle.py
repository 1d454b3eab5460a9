import json

import pytest

from cse.errors import CseError
from cse.runtime.bundle import MANIFEST, MODEL, TOKENIZER, read_manifest, verify
from cse.runtime.onnx_encoder import OnnxEncoder

from .conftest import DIMENSION


def edit(folder, **changes):
    tree = json.loads((folder / MANIFEST).read_text())
    tree.update(changes)
    (folder / MANIFEST).write_text(json.dumps(tree))


def test_a_whole_bundle_is_read_back(bundle):
    manifest = verify(bundle)
    assert (manifest.dimension, manifest.pooler, manifest.normalize) == (DIMENSION, "mean", True)
    assert manifest.metrics == {"STS-B": 80.0}
    assert set(manifest.files) == {MODEL, TOKENIZER}
    edit(bundle, later_addition=1)
    assert read_manifest(bundle) == manifest


def test_truncated_model_is_named(bundle):
    (bundle / MODEL).write_bytes((bundle / MODEL).read_bytes()[:-1])
    with pytest.raises(CseError, match=r"model\.onnx: \d+ bytes, bundle\.json says \d+"):
        OnnxEncoder(bundle)


def test_changed_byte_is_found_at_equal_size(bundle):
    content = bytearray((bundle / MODEL).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / MODEL).write_bytes(content)
    with pytest.raises(CseError, match=r"model\.onnx: changed since the export"):
        verify(bundle)


def test_changed_tokenizer_is_named(bundle):
    text = (bundle / TOKENIZER).read_text()
    (bundle / TOKENIZER).write_text(text.replace("mat", "hat"))
    with pytest.raises(CseError, match=r"tokenizer\.json: changed"):
        OnnxEncoder(bundle)


@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_missing_file_is_named(bundle, name):
    (bundle / name).unlink()
    with pytest.raises(CseError, match=f"{name}: missing, though bundle.json lists it"):
        verify(bundle)


def test_folder_without_a_manifest_is_no_bundle(bundle, tmp_path):
    (bundle / MANIFEST).unlink()
    for folder in (bundle, tmp_path / "absent", bundle / MODEL):
        with pytest.raises(CseError, match="no bundle here"):
            read_manifest(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2, this version reads 1"),
        ({"dimension": "8"}, "'dimension' should be int, found str"),
        ({"dimension": True}, "'dimension' should be int, found bool"),
        ({"files": []}, "'files' should be dict, found list"),
        ({"files": {MODEL: {}}}, "files does not list tokenizer.json"),
        ({"files": {MODEL: {}, TOKENIZER: {}}}, "entry 'model.onnx' is not valid"),
        ({"files": {"../x": {"sha256": "", "bytes": 0}, MODEL: {}, TOKENIZER: {}}}, "entry '../x' is not valid"),
    ],
)
def test_manifest_with_a_mistake_is_refused(bundle, changes, message):
    edit(bundle, **changes)
    with pytest.raises(CseError, match=message):
        verify(bundle)


def test_missing_key_and_broken_json(bundle):
    tree = json.loads((bundle / MANIFEST).read_text())
    del tree["pooler"]
    (bundle / MANIFEST).write_text(json.dumps(tree))
    with pytest.raises(CseError, match="key 'pooler' is missing"):
        read_manifest(bundle)
    for text in ("{", "[]", "\xff"):
        (bundle / MANIFEST).write_bytes(text.encode("latin-1"))
        with pytest.raises(CseError, match=r"bundle\.json: (not valid JSON|expected an object)"):
            read_manifest(bundle)
