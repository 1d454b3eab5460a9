"""The peers of the training benchmark train what they are said to train."""

import pytest
import torch

from benchmarks.inputs import backbone_folder, rows_of
from benchmarks.peers.training import VIRTUAL_TOKENS, full_model, prefix_model, train

CPU = torch.device("cpu")


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
