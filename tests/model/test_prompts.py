"""Prompts of every kind against attention written out in float64, and what may and may not be trained."""

import numpy as np
import pytest
import torch

from cse.model.backbone import merged
from cse.model.checkpoint import count_parameters, save_checkpoint, stored_weights
from cse.model.prompts import PROMPT_KINDS, Prompt
from cse.model.sentence_encoder import SentenceEncoder, load_checkpoint
from cse.training.encoder import start_from_checkpoint, start_from_text
from tests.model import reference
from tests.parts import embed, moved, new_prompt, prompted, sentence_encoder, slopes


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


@pytest.mark.parametrize(("trained", "part"), [("full", ""), ("norms", "LayerNorm"), ("biases", "bias")])
def test_what_is_trained_of_the_backbone_is_stored_alone(bert, tmp_path, trained, part):
    bare = sentence_encoder(bert).encode(["a cat"])
    encoder = moved(sentence_encoder(bert, trained=trained))
    names = {f"backbone.{name}" for name, _ in bert.named_parameters() if part in name}
    assert encoder.trainable().keys() == names
    save_checkpoint(encoder, tmp_path)
    restored = SentenceEncoder.load(tmp_path)
    assert restored.trainable().keys() == names
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


def make_prompt(backbone, kind, length=5, **options) -> Prompt:
    torch.manual_seed(4)
    return new_prompt(kind, backbone, length=length, dropout=0.0, init_std=0.7, **options)


@pytest.mark.parametrize("kind", ["key_value", "hidden_state"])
def test_a_shared_prompt_is_the_separate_one_with_its_table_repeated(backbone, batch, kind):
    shared = make_prompt(backbone, kind, shared=True)
    separate = make_prompt(backbone, kind)
    repeats = (1, backbone.layers) if kind == "key_value" else (backbone.layers, 1, 1)
    with torch.no_grad():
        separate.table.copy_(shared.table.repeat(*repeats))
        found, expected = (
            embed(sentence_encoder(backbone, prompt, pooler="mean"), *batch) for prompt in (shared, separate)
        )
    torch.testing.assert_close(found, expected)
    assert shared.table.numel() * backbone.layers == separate.table.numel()


@pytest.mark.parametrize(("kind", "shared"), [("key_value", True), ("hidden_state", True), ("input", False)])
def test_gradients_equal_finite_differences(bert, kind, shared):
    encoder = sentence_encoder(bert, make_prompt(bert, kind, shared=shared), pooler="mean").double()
    ids_BL, mask_BL = torch.tensor([[2, 9, 11, 3], [2, 7, 3, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])

    def loss() -> torch.Tensor:
        return embed(encoder, ids_BL, mask_BL).sin().sum()

    found, expected = slopes(loss, encoder.prompt.table, 1e-4)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("pooler", ["cls", "mean"])
@pytest.mark.parametrize("shift", [True, False])
def test_an_input_prompt_passes_through_all_layers(backbone, batch, pooler, shift):
    encoder = sentence_encoder(backbone, make_prompt(backbone, "input"), pooler=pooler, position_shift=shift)
    ids_BL, mask_BL = batch
    front = encoder.prompt.table.detach().double().numpy()
    last = reference.states_of(backbone, ids_BL, mask_BL, shift=5 if shift else 0, front=front)[-1][:, 5:]
    mask = mask_BL.numpy()[..., None]
    expected = last[:, 0] if pooler == "cls" else (last * mask).sum(axis=1) / mask.sum(axis=1)
    with torch.no_grad():
        np.testing.assert_allclose(embed(encoder, ids_BL, mask_BL).numpy(), expected, atol=2e-5)
    assert encoder.prefix() is None


def test_the_cls_prompt_starts_as_the_backbones_own_and_replaces_that_word_alone(backbone, batch):
    ids_BL, mask_BL = batch
    ids_BL = ids_BL.clone()
    ids_BL[:, 0] = backbone.special_ids["cls"]
    encoder = sentence_encoder(backbone, cls=True, pooler="mean")
    with torch.no_grad():
        bare = embed(sentence_encoder(backbone, pooler="mean"), ids_BL, mask_BL)
        assert torch.equal(embed(encoder, ids_BL, mask_BL), bare)
        encoder.cls.add_(torch.linspace(-1, 1, 32))
        found = embed(encoder, ids_BL, mask_BL).numpy()
    words = backbone.model.embeddings.word_embeddings.weight.detach().double().numpy()[ids_BL.numpy()]
    words[:, 0] = encoder.cls.detach().numpy()
    last = reference.states_of(backbone, ids_BL, mask_BL, words=words)[-1]
    mask = mask_BL.numpy()[..., None]
    np.testing.assert_allclose(found, (last * mask).sum(axis=1) / mask.sum(axis=1), atol=2e-5)
    assert list(encoder.trainable()) == ["cls"]


@pytest.mark.parametrize(("kind", "shared"), [
    ("key_value", False), ("key_value", True), ("hidden_state", False), ("hidden_state", True), ("input", False),
])  # fmt: skip
@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_reparametrised_prompt_is_stored_as_a_plain_one(bert, tmp_path, network, kind, shared):
    options = {"shared": shared, "reparametrize": network, "reparametrize_width": 16}
    encoder = sentence_encoder(bert, make_prompt(bert, kind, **options))
    assert {name.split(".")[2] for name in encoder.trainable()} == {"start", "layers"} | {"lstm"} & {network}
    assert all(name.startswith("prompt.network.") for name in encoder.trainable())
    assert list(stored_weights(encoder)) == ["prompt.table"]
    if network == "mlp":  # each vector makes what its place has in all layers, and all start as in the released code
        made, values = encoder.prompt.network, encoder.prompt.values().detach().numpy()
        weights = [(one.weight.detach().numpy(), one.bias.detach().numpy()) for one in (made.layers[0], made.layers[2])]
        assert all(weight.std() == pytest.approx(0.02, rel=0.15) and not bias.any() for weight, bias in weights)
        inner = np.tanh(made.start.detach().numpy() @ weights[0][0].T)
        expected = inner @ weights[1][0].T
        np.testing.assert_allclose(np.moveaxis(values, -2, 0).reshape(expected.shape), expected, atol=1e-7)
    assert encoder.prompt.values().shape == make_prompt(bert, kind, shared=shared).table.shape
    save_checkpoint(encoder, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert loaded.prompt.network is None
    sentences = ["the cat sleeps", "a dog"]
    np.testing.assert_allclose(loaded.encode(sentences), encoder.encode(sentences), atol=1e-6)


@pytest.mark.parametrize("kind", ["key_value", "hidden_state"])
def test_a_prompt_from_a_text_gives_the_keys_and_values_of_the_text(backbone, kind):
    prompt = make_prompt(backbone, kind, length=4)
    start_from_text(prompt, backbone, "the cat sleeps")
    ids = backbone.tokenizer.encode("the cat sleeps the", add_special_tokens=False).ids
    ids_BL = torch.tensor([ids])
    with torch.no_grad():
        states = backbone.model(input_ids=ids_BL, output_hidden_states=True).hidden_states
        for (key_HPK, value_HPK), state, block in zip(prompt(backbone, 1), states, backbone.blocks, strict=False):
            layer = block.attention.self
            for found, expected in ((key_HPK, layer.key(state[0])), (value_HPK, layer.value(state[0]))):
                torch.testing.assert_close(found.transpose(0, 1).flatten(1), expected, atol=1e-5, rtol=1e-5)


def test_a_prompt_from_a_checkpoint(bert, tmp_path):
    trained = sentence_encoder(bert, make_prompt(bert, "key_value"))
    save_checkpoint(trained, tmp_path)
    fresh = new_prompt("key_value", bert, length=5, dropout=0.0, init_std=0.1)
    start_from_checkpoint(fresh, bert, tmp_path)
    assert torch.equal(fresh.table, trained.prompt.table)
