"""A template stands around every sentence, survives truncation, is read at mask or last token and can be trained."""

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel

from cse.model.declared import MINILM
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.tokens import plain_copy
from tests.model import reference
from tests.model.families import make_family_folder
from tests.parts import backbone_of, new_prompt, new_template, sentence_encoder
from tests.tiny import make_backbone_folder

TEXT = "the man reads {sentence} near {mask} ."


def ids_of(backbone, text: str) -> list[int]:
    return backbone.tokenizer.encode(text, add_special_tokens=False).ids


def make_encoder(backbone, text=TEXT, kind=None, denoise="none", shift=True, **options) -> SentenceEncoder:
    torch.manual_seed(4)
    prompt = None if kind is None else new_prompt(kind, backbone, length=3, dropout=0.0, init_std=0.7)
    templates = [new_template(text, backbone, **options)]
    return sentence_encoder(backbone, prompt, pooler="mask", templates=templates, denoise=denoise, position_shift=shift)


def test_truncation_cuts_the_sentence_and_never_the_template(backbone):
    template = new_template(TEXT, backbone)
    tokenizer = template.tokenizer(backbone.tokenizer)
    tokenizer.enable_truncation(10)
    long, whole = tokenizer.encode("cat " * 50).ids, list(template.ids)
    assert long == whole[: template.start] + ids_of(backbone, "cat cat") + whole[template.start :]


def test_a_text_of_mask_tokens_does_not_move_the_read_out(backbone):
    encoder = make_encoder(backbone)
    mask = backbone.tokenizer.id_to_token(backbone.special_ids["mask"])
    text = f"{mask} dog {mask}"
    ids = torch.tensor([encoder.tokenizer.encode(text).ids])
    with torch.no_grad():
        last_LD = backbone.model(input_ids=ids).last_hidden_state[0]
    np.testing.assert_allclose(encoder.encode(text, normalize=False), last_LD[-1 - 2], atol=1e-5)


# PromptBERT's templates as its scripts have them, and as `template.text` has them.
RELEASED = {
    "bert": ('This sentence of "{}" means[MASK].', 'This sentence of "{sentence}" means {mask} .'),
    "roberta": ("This sentence : ' {} ' means<mask>.", "This sentence : ' {sentence} ' means {mask}."),
}


@pytest.fixture(scope="module")
def pieces_backbones(tmp_path_factory):
    """MiniLM, which has word pieces, and a tiny RoBERTa whose tokens are bytes."""
    folder = make_backbone_folder(tmp_path_factory.mktemp("bytes"), "roberta", vocab_size=400)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {"bert": backbone_of(MINILM), "roberta": backbone_of(folder)}


def released_ids(backbone, family: str, sentence: str) -> list[int]:
    """What PromptBERT's evaluation makes of a sentence: one text, a period pressed on, cut as a whole."""
    if sentence and sentence[-1] not in ".?\"'":
        sentence += "."
    return plain_copy(backbone.tokenizer).encode(RELEASED[family][0].format(sentence)).ids


@pytest.mark.parametrize("sentence", ["the cat sleeps", "a dog.", "not a dog?", "no!", "(a dog)", "two 3", ";"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_tokens_at_inference_are_those_of_the_released_code(pieces_backbones, family, sentence):
    backbone = pieces_backbones[family]
    template = new_template(RELEASED[family][1], backbone, end_with_period=True)
    assert template.tokenizer(backbone.tokenizer).encode(sentence).ids == released_ids(backbone, family, sentence)


# tokens before and behind a text
@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("llama", [], [3]), ("llama, wide heads, no added tokens", [], []), ("gemma3", [2], [3])],
)
def test_a_template_without_a_mask_is_read_at_the_last_token(name, first, last, tmp_path):
    backbone = backbone_of(make_family_folder(tmp_path, name))
    library = AutoModel.from_pretrained(tmp_path).eval()
    templates = [new_template("the man reads {sentence} near", backbone)]
    encoder, sentences = sentence_encoder(backbone, None, pooler="last", templates=templates), ["two small birds", ""]
    for sentence in sentences:
        words = ids_of(backbone, f"the man reads {sentence} near")
        assert encoder.tokenizer.encode(sentence).ids == [*first, *words, *last]
        with torch.no_grad():
            last_LD = library(input_ids=torch.tensor([[*first, *words, *last]])).last_hidden_state[0]
        np.testing.assert_allclose(encoder.encode(sentence, normalize=False), last_LD[-1], atol=1e-5)
    alone = [encoder.encode(sentence, normalize=False) for sentence in sentences]
    np.testing.assert_allclose(encoder.encode(sentences, normalize=False), np.stack(alone), atol=1e-5)


@pytest.mark.parametrize(("kind", "shift"), [(None, True), ("key_value", True), ("key_value", False)])
def test_noise_is_the_template_alone_at_the_positions_that_the_sentence_pushes_it_to(backbone, kind, shift):
    """PromptBERT: what stands behind the sentence keeps the positions that it has behind the sentence."""
    encoder = make_encoder(backbone, kind=kind, denoise="always", shift=shift)
    plain = make_encoder(backbone, kind=kind, shift=shift)
    sentences = ["two small birds", "dog", "the woman reads a book in the garden"]
    template = encoder.templates[0]
    ids = np.array(template.ids)
    prefix = encoder.prefix()
    if prefix is not None:  # heads side by side again: (P, D)
        prefix = [[block.detach().double().transpose(0, 1).flatten(1).numpy() for block in layer] for layer in prefix]
    noise = []
    for text in sentences:
        pushed = np.where(np.arange(len(ids)) < template.start, 0, len(ids_of(backbone, text)))
        last_BLD = reference.states_of(
            backbone, ids[None], np.ones((1, len(ids)), int), shift=encoder.shift, prefix=prefix, pushed=pushed[None]
        )[-1]
        noise.append(last_BLD[0, len(ids) - 1 - template.tail])
    expected = plain.encode(sentences, normalize=False) - np.array(noise)
    np.testing.assert_allclose(encoder.encode(sentences, normalize=False), expected, atol=3e-5)


@pytest.mark.parametrize("denoise", ["none", "train_only"])
def test_dev_pairs_may_be_read_as_in_training(bert, denoise):
    """PromptBERT's trainer scores with denoising and without an added period; afterwards all is as it was."""
    encoder = make_encoder(bert, denoise=denoise, end_with_period=True)
    asked = make_encoder(bert, denoise="none" if denoise == "none" else "always")
    sentences = ["two small birds", "dog", "a dog."]
    before = encoder.encode(sentences)
    np.testing.assert_array_equal(before, make_encoder(bert, end_with_period=True).encode(sentences))
    with encoder.read_as_in_training():
        np.testing.assert_array_equal(encoder.encode(sentences), asked.encode(sentences))
    np.testing.assert_array_equal(encoder.encode(sentences), before)
    assert np.abs(before - asked.encode(sentences)).max() > 1e-3


def test_a_trained_template_starts_as_its_words_and_each_piece_moves_alone(backbone):
    encoder, fixed = make_encoder(backbone, trained=True), make_encoder(backbone)
    sentences = ["two small birds", "the man sleeps"]  # of one length, and both hold words of the template
    np.testing.assert_array_equal(encoder.encode(sentences), fixed.encode(sentences))
    assert list(encoder.trainable()) == ["template"]
    assert encoder.template.shape == (5, 32)  # the man reads near .
    with torch.no_grad():
        encoder.template[1] += 1.0  # man
    found = encoder.encode(sentences, normalize=False)
    rows = [fixed.tokenizer.encode(text).ids for text in sentences]
    words_BLD = backbone.model.embeddings.word_embeddings.weight.detach().double().numpy()[rows]
    words_BLD[:, 2] += 1.0  # the template's "man" behind [CLS] and "the", not the sentence's
    last_BLD = reference.states_of(backbone, rows, np.ones_like(rows), words=words_BLD)[-1]
    where = [row.index(backbone.special_ids["mask"]) for row in rows]
    np.testing.assert_allclose(found, last_BLD[np.arange(2), where], atol=2e-5)
