"""What models are compared with: the backbone that was trained on, and the bundle of this very checkpoint."""

from __future__ import annotations

import json
import shutil

import pytest

import cse.model.checkpoint as checkpoint_module
from cse.artifact import Kind, write_manifest
from cse.data.suite import only_pairs
from cse.errors import CseError
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.checkpoint import identity_of, save_checkpoint
from cse.model.declared import CONFIG_FILE
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bundle import FORMAT, MODEL, TOKENIZER, Manifest
from cse.runtime.domain import Shape
from cse.settings.model import BackboneSettings
from cse.stages.evaluate import describe_model, evaluate_models, stale_bundles
from cse.stages.open_model import BackboneOf, open_model
from tests.parts import new_prompt, sentence_encoder
from tests.runtime.conftest import DIMENSION, domain_facts
from tests.stages.training import write_checkpoint
from tests.tiny import make_backbone_folder


@pytest.fixture
def backbone(tmp_path):
    """A backbone of the test's own, to change at will."""
    return make_backbone_folder(tmp_path / "backbone", "bert")


def test_the_bare_backbone_is_read_at_the_recorded_revision(backbone, tmp_path, monkeypatch):
    folder = write_checkpoint(tmp_path / "checkpoint", backbone)
    config = json.loads((folder / CONFIG_FILE).read_text())
    config["backbone"] |= {"name": "owner/model", "revision": "v1.2"}
    write_manifest(folder, Kind.CHECKPOINT, config)
    asked = []

    def find(name, revision):
        asked.append((name, revision))
        return find_backbone(str(backbone))

    monkeypatch.setattr(checkpoint_module, "find_backbone", find)
    bare = open_model(BackboneOf(folder), device="cpu")
    assert asked == [("owner/model", "v1.2")]
    assert bare.prompt is None
    assert (bare.encode("a dog") == SentenceEncoder.load(str(backbone)).encode("a dog")).all()
    assert describe_model(BackboneOf(folder)) == {
        "kind": "backbone",
        "backbone": {"name": "owner/model", "revision": "v1.2", "sha256": find_backbone(str(backbone)).sha256},
        "prompt": None,
    }


def test_the_bare_backbone_reads_texts_as_the_model_does(backbone, tmp_path):
    """Else what the task text and the length bring is counted as the training's."""
    loaded = load_backbone(find_backbone(str(backbone))).use_as(max_length=9, texts={"query": "find: "})
    save_checkpoint(sentence_encoder(loaded, new_prompt("key_value", loaded, length=3)), tmp_path)
    settings = BackboneSettings(name=str(backbone), max_length=9, texts={"query": "find: "})
    for model in (BackboneOf(tmp_path), BackboneOf(settings)):
        bare = open_model(model, device="cpu")
        assert (bare.max_length, bare.texts) == (9, {"query": "find: "})
        plain = SentenceEncoder.load(str(backbone))
        assert (bare.encode("a dog", role="query") == plain.encode("find: a dog")).all()
        assert (bare.encode("a dog " * 20) != plain.encode("a dog " * 20)).any(), "as long as the model reads"


def test_other_weights_in_its_place_are_no_baseline(backbone, tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint", backbone)
    shutil.rmtree(backbone)
    make_backbone_folder(backbone, "bert", seed=1)
    with pytest.raises(CseError, match="has other weights") as caught:
        open_model(BackboneOf(folder), device="cpu")
    assert "\n" not in str(caught.value)


def test_records_of_a_checkpoint_hold_nothing_that_tells_its_seeds_apart(backbone, tmp_path):
    first, second = (
        write_checkpoint(tmp_path / name, backbone, std) for name, std in (("first", 0.1), ("second", 0.2))
    )
    assert identity_of(first) != identity_of(second)
    assert describe_model(str(first)) == describe_model(str(second))


def write_bundle(folder, made_from):
    folder.mkdir(parents=True)
    files = dict.fromkeys((MODEL, TOKENIZER), "0" * 64)
    shape = Shape("", 0, 0, 0, DIMENSION, 0, 0)
    Manifest(FORMAT, 0, domain_facts(checkpoint=made_from), shape, files=files).write(folder)
    return folder


def test_a_bundle_of_another_checkpoint_is_named(backbone, tmp_path, capsys):
    old, new = (
        write_checkpoint(tmp_path / name / "checkpoint", backbone, std) for name, std in (("old", 0.1), ("new", 0.2))
    )
    fresh = write_bundle(tmp_path / "new/bundle", identity_of(new))
    stale = write_bundle(tmp_path / "new/stale", identity_of(old))
    unknown, alone = write_bundle(tmp_path / "new/unknown", ""), write_bundle(tmp_path / "alone/stale", "0" * 64)
    line = f"{stale}: was not exported from {new}; run `cse export` to bundle that checkpoint"
    for models, expected in {
        (new, fresh): [],
        (new, stale): [line],
        (stale,): [line],  # a newer checkpoint lies beside it
        (fresh,): [],
        (old, new, stale): [],
        (new, unknown): [],
        (alone,): [],
    }.items():
        assert stale_bundles(map(str, models)) == expected, models
    assert stale_bundles([BackboneOf(new), str(stale)]) == [line]
    with pytest.raises(CseError, match="no data for sts"):
        evaluate_models(
            {"torch": str(new), "onnx": str(stale)}, only_pairs([]),
            measures=("sts",), device="cpu", progress=False,
        )  # fmt: skip
    assert capsys.readouterr().err.startswith(f"warning: {line}\n"), "before anything is measured"
