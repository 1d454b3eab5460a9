"""The peers of the benchmarks: they encode and train what they are said to."""

import sys
import time

import numpy as np
import pytest
import torch

from benchmarks.encode import measure, parse
from benchmarks.inputs import backbone_folder, rows_of
from benchmarks.peers.encoder_process import EncoderProcess
from benchmarks.peers.encoders import fastest, side_by_side
from benchmarks.peers.training import VIRTUAL_TOKENS, full_model, prefix_model, train
from cse.errors import CseError

CPU = torch.device("cpu")
TEXTS = ["a dog runs", "two men are sitting in the park today", "a cat"]


@pytest.mark.slow
def test_contestants_in_fp32_agree_and_others_nearly():
    words = ["--backbone", "random:tiny", "--device", "cpu", "--sentences", "30", "--rounds", "1"]
    found = measure(parse([*words, "--peers", "torch-fp32"]))["contestants"]
    peer = found["sentence-transformers torch-fp32"]["facts"]
    assert str(peer["batch_size"]) in peer["texts_per_s"][peer["way"]]
    for name, each in found.items():
        if "fp32" in name:
            assert each["largest_difference"] < 1e-5 and each["alone"] < 1e-5, name
        else:
            assert 1e-5 < each["largest_difference"] < 0.1, name


def test_a_peer_that_does_not_run_says_why(tmp_path):
    with pytest.raises(CseError, match="nowhere"):
        EncoderProcess(sys.executable, "nowhere", tmp_path, tmp_path / "texts.json", "cpu")


def test_copies_share_the_texts_out_and_vectors_keep_their_order():
    shares = []

    def copy(texts, size):
        shares.append(sorted(map(len, texts)))
        return np.array([[len(text)] for text in texts])

    found = side_by_side([copy, copy])(["aaaa", "a", "aaa", "aa", "aaaaa"], 2)
    assert found[:, 0].tolist() == [4, 1, 3, 2, 5]
    assert sorted(shares) == [[1, 3, 5], [2, 4]]


def test_the_fastest_way_and_batch_size_are_kept():
    def way(quick):
        return lambda: lambda texts, size: time.sleep(0 if size == quick else 0.03)

    _, name, size, rates = fastest({"slow": way(None), "quick with 64": way(64)}, TEXTS, "cpu")
    assert (name, size) == ("quick with 64", 64)
    assert set(rates) == {"slow", "quick with 64"}


# ---- training ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    return rows_of("triplets", 8 * 24, None)


def _copies(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_prefix_tuning_changes_its_prefix_alone_and_its_loss_falls(rows):
    with backbone_folder("random:tiny") as folder:
        model = prefix_model(folder, CPU, 32, bf16=True)
        before = _copies(model)
        # ten times the same rows: what it can learn is these rows
        again = rows.take([*range(64)] * 10)
        _, losses = train(model, again, batch_size=64, first=1, bf16=True, learning_rate=2e-1, every=1)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    (prefix,) = trained
    assert before[prefix].shape == (VIRTUAL_TOKENS, 2 * 2 * 64)  # keys and values of two layers
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == trained
    assert len(losses) == 10
    assert losses[-1] < 0.98 * losses[0]


def test_prefix_is_not_pooled():
    with backbone_folder("random:tiny") as folder:
        model = prefix_model(folder, CPU, 32, bf16=False).eval()
    features = model.preprocess(["a dog runs", "two men are sitting in the park"])
    found = model(dict(features))
    assert found["token_embeddings"].shape[:2] == features["input_ids"].shape
    assert torch.equal(found["attention_mask"], features["attention_mask"])
    short = features["attention_mask"][0].sum()
    by_hand = torch.nn.functional.normalize(found["token_embeddings"][0, :short].mean(dim=0), dim=0)
    torch.testing.assert_close(found["sentence_embedding"][0], by_hand)


def test_full_fine_tuning_changes_every_layer(rows):
    with backbone_folder("random:tiny") as folder:
        model = full_model(folder, CPU, 32)
        before = _copies(model)
        seconds, losses = train(model, rows, batch_size=48, first=1, bf16=False)
    layers = {name for name in before if ".layer." in name and not name.endswith("key.bias")}
    assert len(layers) == 2 * 15
    now = dict(model.named_parameters())
    assert all(not torch.equal(now[name], before[name]) for name in layers)
    assert seconds > 0
    assert losses == []
