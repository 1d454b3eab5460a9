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


def test_a_folder_with_a_bundle_inside_names_it(bundle):
    with pytest.raises(CseError, match=f"{bundle.parent}: no bundle here .*; did you mean {bundle}\\?"):
        read_manifest(bundle.parent)


HASH = "0" * 64
LISTED = dict.fromkeys((MODEL, TOKENIZER), HASH)
SIZES = {"words": 8, "layers": 1, "heads": 1, "head_size": 8, "positions": 6}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2, this version reads 4; export the bundle, or create the bank, again"),
        ({"format": "x" * 10**6}, r"format 'x{39}\.\.\., this version"),
        ({"pooler": None}, "key 'pooler' is missing"),
        ({"dimension": "8"}, "'dimension' should be int, found str"),
        ({"dimension": 0}, "dimension is 0, not between 1 and"),
        ({"dimension": 10**4000}, r"dimension is 10+\.\.\., not between"),
        ({"widths": [0]}, "widths are not those of a model of 8 dimensions"),
        ({"widths": [9]}, "widths are not those of a model of 8 dimensions"),
        ({"widths": ["8"]}, r"'widths' should be list\[int\], found"),
        ({"max_length": 10**6}, "max_length is 1000000, not between 3 and 100000"),
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


def rewrite(folder, change):
    """Change a manifest's text as with an editor."""
    tree = json.loads((folder / MANIFEST).read_text())
    change(tree)
    (folder / MANIFEST).write_text(json.dumps(tree))


def test_an_edit_by_hand_is_noticed(bundle):
    for change in (
        lambda tree: tree.update(max_length=5),
        lambda tree: tree["metrics"].update({"STS-B": 99.0}),
        lambda tree: tree.pop("seal"),
        lambda tree: tree.update(seal=["?"]),
    ):
        before = (bundle / MANIFEST).read_bytes()
        rewrite(bundle, change)
        with pytest.raises(CseError, match=r"bundle\.json: changed since it was written"):
            read_manifest(bundle)
        (bundle / MANIFEST).write_bytes(before)
    rewrite(bundle, lambda tree: None)  # written anew, it says the same
    read_manifest(bundle)
