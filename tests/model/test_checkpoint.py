"""A checkpoint comes back as it was, holds no backbone, and is refused where anything about it is wrong."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cse.artifact import Kind, write_manifest
from cse.model.backbone_files import find_backbone
from cse.model.checkpoint import WEIGHTS_FILE, identity_of, save_checkpoint
from cse.model.declared import CONFIG_FILE
from cse.model.sentence_encoder import SentenceEncoder, load_checkpoint
from tests.export.systems import PARTS, POST, ROWS, make_encoder
from tests.model.families import make_family_folder
from tests.parts import backbone_of, refusal
from tests.tiny import make_backbone_folder

SENTENCES = ["the cat sits on the mat", "a dog", "", "two small birds eat red apple bread near the old river"]
FULL = {"roberta full with prompt": ("roberta", "key_value", {"trained": "full", "mlp": "always"})}


def save(encoder, folder, facts=None):
    folder.mkdir(exist_ok=True)
    save_checkpoint(encoder, folder, facts)
    return folder


@pytest.fixture
def checkpoint(bert, tmp_path):
    return save(make_encoder(bert, "key_value", mlp="always"), tmp_path / "checkpoint")


@pytest.mark.parametrize(("family", "kind", "options"), (ROWS | PARTS | FULL).values(), ids=ROWS | PARTS | FULL)
def test_encodes_the_same_after_saving_and_loading(tiny_folders, tmp_path, family, kind, options):
    backbone = backbone_of(tiny_folders[family])
    encoder = make_encoder(backbone, kind, **options)
    loaded = SentenceEncoder.load(save(encoder, tmp_path / "checkpoint"))
    for normalize in (True, False):
        expected = encoder.encode(SENTENCES, normalize=normalize)
        np.testing.assert_array_equal(loaded.encode(SENTENCES, normalize=normalize), expected)
    assert not loaded.training


def test_parts_that_no_such_row_has_come_back(bert, tmp_path):
    """Words narrower than the layers, a projector that started as the MLM head's, and maps that labels made."""
    narrow = backbone_of(make_family_folder(tmp_path / "electra", "electra"))
    headed = backbone_of(make_backbone_folder(tmp_path / "headed", "bert", head=True))
    mapped = [make_encoder(bert, "key_value", pooler="mean") for _ in range(2)]
    for encoder, kind in zip(mapped, ("discriminant", "linear"), strict=True):
        encoder.post = POST[kind](np.random.default_rng(0).normal(size=(100, 32)).astype(np.float32))
    of_the_head = make_encoder(headed, "key_value", mlp="always", projector="mlm_transform")
    for number, encoder in enumerate((make_encoder(narrow, "input"), of_the_head, *mapped)):
        loaded = load_checkpoint(save(encoder, tmp_path / str(number)))
        assert loaded.dimension == encoder.dimension == (7 if encoder in mapped else 32)
        np.testing.assert_array_equal(loaded.encode(SENTENCES), encoder.encode(SENTENCES))


def test_a_flipped_bit_and_a_config_that_was_edited_are_noticed(checkpoint):
    path = checkpoint / WEIGHTS_FILE
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # in a number, which stays finite
    path.write_bytes(content)
    assert refusal(SentenceEncoder.load, checkpoint).startswith(f"{path}: does not match checkpoint.json")
    whole = (checkpoint / CONFIG_FILE).read_text()
    for change in (
        lambda config: config["facts"].update(dev_spearman=99.0),
        lambda config: config["backbone"].update(sha256="0" * 64),
        lambda config: config.pop("seal"),
    ):
        change(config := json.loads(whole))
        (checkpoint / CONFIG_FILE).write_text(json.dumps(config))
        assert f"{checkpoint / CONFIG_FILE}: changed since it was written" in refusal(SentenceEncoder.load, checkpoint)


def test_identity_follows_the_weights_and_not_what_was_noted_beside_them(bert, tmp_path):
    encoder = make_encoder(bert, "key_value")
    first = save(encoder, tmp_path / "first", {"dev_spearman": 1.0})
    second = save(encoder, tmp_path / "second", {"dev_spearman": 2.0})
    with torch.no_grad():
        encoder.prompt.table.add_(1e-3)
    third = save(encoder, tmp_path / "third", {"dev_spearman": 1.0})
    assert identity_of(first) == identity_of(second) != identity_of(third)


HUGE = {"kind": "flow", "width": 1000, "dimension": 9, "levels": 1, "depth": 1, "hidden": 1000}
LONG = {"kind": "key_value", "length": 10**9, "shared": False, "position_shift": False}
BY_HAND = [
    ({"prompt": LONG}, "prompt.length"),
    ({"post": {"kind": "whitening", "width": 1000, "dimension": 1000}}, "post.width does not fit the"),
    ({"post": HUGE}, "post.width"),
    ({"parameters": "lora", "lora_rank": 10**6}, "lora_rank does not fit the"),
    ({"prompt": {"kind": "rotated", "length": 4}}, "describes no model of this version: 'rotated'"),
    ({"prompt": {"kind": "key_value"}}, "describes no model of this version: 'length'"),
    ({"texts": 3}, "describes no model of this version"),
    ({"max_length": "9"}, "describes no model of this version"),
]


def test_a_config_or_weights_that_somebody_sealed_by_hand(checkpoint):
    """They take neither memory nor a model that they do not describe, and are never the bare backbone."""
    config, weights = json.loads((checkpoint / CONFIG_FILE).read_text()), load_file(checkpoint / WEIGHTS_FILE)
    for changes, reason in BY_HAND:
        write_manifest(checkpoint, Kind.CHECKPOINT, config | changes)
        message = refusal(SentenceEncoder.load, checkpoint)
        assert message.startswith(f"{checkpoint / CONFIG_FILE}: ") and reason in message
    table = weights.pop("prompt.table")
    for others, reason in (
        (weights, "lacks prompt.table; a checkpoint without its prompts is the bare backbone"),
        (weights | {"prompt.table": table, "x": table.clone()}, "holds weights that its config does not name: x"),
        (weights | {"prompt.table": table * torch.inf}, "prompt.table holds values that are not finite"),
    ):
        save_file(others, checkpoint / WEIGHTS_FILE)
        write_manifest(checkpoint, Kind.CHECKPOINT, config | {"files": {}})
        assert f"{checkpoint / WEIGHTS_FILE}: {reason}" in refusal(SentenceEncoder.load, checkpoint)


def test_backbone_that_moved_is_found_where_the_caller_says_and_another_refused_by_its_bytes(tiny_folders, tmp_path):
    first = shutil.copytree(tiny_folders["bert"], tmp_path / "first")
    encoder = make_encoder(backbone_of(first), "key_value")
    folder = save(encoder, tmp_path / "checkpoint")
    moved = first.rename(tmp_path / "moved")
    message = refusal(SentenceEncoder.load, folder)
    assert str(first) in message and "backbone=" in message
    other = find_backbone(str(make_backbone_folder(tmp_path / "other", "bert", seed=1)))
    message = refusal(SentenceEncoder.load, folder, backbone=other.name)
    for part in (str(first), encoder.backbone.files.sha256[:12], other.name, other.sha256[:12]):
        assert part in message
    expected, before = encoder.encode(SENTENCES), identity_of(folder)
    np.testing.assert_array_equal(SentenceEncoder.load(folder, backbone=str(moved)).encode(SENTENCES), expected)
    config = json.loads((folder / CONFIG_FILE).read_text())
    config["backbone"]["name"] = str(moved)  # which a user may mend
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    np.testing.assert_array_equal(SentenceEncoder.load(folder).encode(SENTENCES), expected)
    assert identity_of(folder) == before
