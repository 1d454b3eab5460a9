"""Deep prompts against attention written out in float64, and what may and may not be trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cse.model.backbone import merged
from cse.model.checkpoint import count_parameters, save_checkpoint
from cse.model.prompts import PROMPT_KINDS
from cse.model.sentence_encoder import SentenceEncoder
from tests.model import reference
from tests.parts import embed, new_prompt, prompted, sentence_encoder


def test_the_mean_of_the_first_and_last_layer_behind_prompts_equals_numpy(backbone, batch):
    """The first may be that behind the first block; other poolers: ``tests/interchange/test_released``."""
    encoder = prompted(backbone, pooler="mean_first_last", first_layer="block1")
    ids_BL, mask_BL = batch
    prefix = reference.key_value_prefix(encoder.prompt.table.detach().double().numpy(), 3, 32)
    states = reference.states_of(backbone, ids_BL, mask_BL, prefix=prefix, shift=encoder.shift)
    mask = mask_BL.numpy()[..., None]
    expected = ((states[1] + states[-1]) / 2 * mask).sum(axis=1) / mask.sum(axis=1)
    with torch.no_grad():
        np.testing.assert_allclose(embed(encoder, ids_BL, mask_BL).numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("kind", PROMPT_KINDS)
def test_prompt_dropout_is_drawn_for_each_row(bert, kind):
    """Two copies of a sentence differ by the prompt's dropout alone; in evaluation they are equal."""
    encoder = prompted(bert, kind, dropout=0.5)
    encoder.backbone.eval()
    ids_BL, mask_BL = torch.tensor([[2, 9, 3], [2, 9, 3]]), torch.ones(2, 3, dtype=torch.long)
    encoder.prompt.train()
    first, second = embed(encoder, ids_BL, mask_BL)
    assert (first - second).abs().max() > 1e-3
    encoder.prompt.eval()
    first, second = embed(encoder, ids_BL, mask_BL)
    torch.testing.assert_close(first, second, atol=1e-6, rtol=0)


def test_a_prompt_starts_as_noise_of_its_deviation_and_what_makes_one_of_that_of_the_released_code(bert):
    for values, deviation in (
        (new_prompt("key_value", bert, length=40, init_std=0.3).table, 0.3),
        (new_prompt("key_value", bert, length=40, reparametrize="mlp").network.start, 0.02),
    ):
        drawn = values.detach().numpy()
        assert abs(drawn.mean()) < 0.1 * deviation and drawn.std() == pytest.approx(deviation, rel=0.1)


def test_full_fine_tuning_trains_every_weight_and_norms_those_of_every_norm(bert):
    encoder = sentence_encoder(bert, trained="full")
    assert count_parameters(encoder).trained == count_parameters(encoder).backbone
    names = set(sentence_encoder(bert, trained="norms").trainable())
    assert names == {f"backbone.{name}" for name, _ in bert.named_parameters() if "LayerNorm" in name}


def test_bitfit_trains_and_stores_the_biases_alone(bert, tmp_path):
    bare = sentence_encoder(bert).encode(["a cat"])
    encoder = sentence_encoder(bert, trained="biases")
    assert set(encoder.trainable()) == {f"backbone.{name}" for name, _ in bert.named_parameters() if "bias" in name}
    with torch.no_grad():
        for weight in encoder.trainable().values():
            weight.add_(0.1)
    save_checkpoint(encoder, tmp_path)
    restored = SentenceEncoder.load(tmp_path)
    assert sorted(restored.trainable()) == sorted(encoder.trainable())
    assert np.array_equal(restored.encode(["a cat"]), encoder.encode(["a cat"]))
    assert not np.allclose(bare, encoder.encode(["a cat"]), atol=1e-3)


def test_lora_adds_a_product_of_thin_matrices_to_every_linear_layer(bert, tmp_path):
    texts = ["a cat", "a dog sleeps on the mat"]
    weights = {name: weight.detach().clone() for name, weight in bert.model.named_parameters()}
    backbone_size = count_parameters(sentence_encoder(bert)).backbone
    bare = sentence_encoder(bert).encode(texts)
    encoder = sentence_encoder(bert, trained="lora", lora_rank=2)
    assert np.array_equal(encoder.encode(texts), bare)
    counts = count_parameters(encoder)
    # rank 2, three layers: four projections 32 x 32, one 32 x 48, one 48 x 32
    assert (counts.trained, counts.backbone) == (2 * 3 * (4 * 64 + 2 * 80), backbone_size)
    with torch.no_grad():
        for weight in encoder.trainable().values():
            weight.normal_(std=0.1)
    trained = encoder.encode(texts)
    save_checkpoint(encoder, tmp_path)
    assert np.array_equal(SentenceEncoder.load(tmp_path).encode(texts), trained)

    low_rank = {name: weight.detach() for name, weight in encoder.trainable().items()}
    with merged(bert):
        assert {name for name, _ in bert.model.named_parameters()} == weights.keys()
        for name, weight in bert.model.named_parameters():
            updates = f"backbone.model.{name.removesuffix('weight')}parametrizations.weight.0."
            up, down = (low_rank.get(updates + part) for part in ("up", "down"))
            assert torch.equal(weight, weights[name] if up is None else weights[name] + up @ down)
        assert np.allclose(encoder.encode(texts), trained, atol=1e-6)
    assert np.array_equal(encoder.encode(texts), trained)
