import logging
import random
import threading

import numpy as np
import pytest
from tokenizers import processors

from cse.errors import CseError
from cse.runtime.encode import cosine_similarity, encode_prepared, prepare_sentences
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.tokens import Tokenizers

from .conftest import DIMENSION, MAX_LENGTH, PAD, make_tokenizer, masked_mean

SENTENCES = ["the cat sat", "a dog", "the cat sat", "", "mat", "a dog sat on the mat", "zebra", "a dog"]


class Recorder:
    """Stands in for a model and keeps what it was given."""

    def __init__(self, value=masked_mean):
        self.value, self.batches, self.threads = value, [], set()

    def __call__(self, ids, mask):
        self.batches.append((ids, mask))
        self.threads.add(threading.get_ident())
        return self.value(ids, mask)


def encode(sentences, embed=masked_mean, tokenizer=None, **options):
    options = {"dimension": DIMENSION, "max_length": MAX_LENGTH, "pad_id": PAD, "normalize": False} | options
    tokenizers = Tokenizers(tokenizer or make_tokenizer())
    ours = {name: options.pop(name) for name in ("max_length", "before") if name in options}

    def of_rows(ids, mask, domains):
        assert domains == []
        return embed(ids, mask)

    prepared = prepare_sentences(sentences, tokenizers=tokenizers, **ours)
    return encode_prepared(prepared, embed=of_rows, **options).warned()


@pytest.mark.parametrize(("batch_size", "batch_tokens", "workers"), [(1, None, 1), (4, 9, 1), (2, None, 3), (64, 1, 2)])
def test_no_way_of_batching_changes_the_result(batch_size, batch_tokens, workers):
    words = random.Random(0)
    texts = [" ".join(words.choices(["the", "cat", "dog", "sat"], k=words.randrange(5))) for _ in range(60)]
    found = encode(texts, batch_size=batch_size, batch_tokens=batch_tokens, workers=workers)
    np.testing.assert_allclose(found, encode(texts), atol=1e-6)


def test_each_distinct_sentence_is_encoded_once_in_batches_of_like_length():
    embed = Recorder()
    encode(SENTENCES, embed, batch_size=2)
    assert sum(len(ids) for ids, _ in embed.batches) == len(set(SENTENCES)) == 6
    assert [ids.shape for ids, _ in embed.batches] == [(2, 6), (2, 4), (2, 3)], "sorted, padded to the longest row"
    for ids, mask in embed.batches:
        assert ids.dtype == mask.dtype == np.int64
        assert (ids[mask == 0] == PAD).all()
        assert (mask.sum(axis=1).max()) == ids.shape[1]


def test_tokens_and_padding_of_a_batch_are_bounded():
    embed = Recorder()
    encode(SENTENCES, embed, batch_tokens=8)
    assert all(ids.size <= 8 for ids, _ in embed.batches)
    for padding in (0, 1, 2):
        embed = Recorder()
        found = encode(SENTENCES, embed, batch_padding=padding)
        np.testing.assert_allclose(found, encode(SENTENCES), atol=1e-6)
        assert max(int((mask.shape[1] - mask.sum(axis=1)).max()) for _, mask in embed.batches) <= padding


def test_text_without_any_token_is_a_masked_column():
    bare, embed = make_tokenizer(), Recorder()
    bare.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    found = encode([""], embed, tokenizer=bare, normalize=True)
    assert embed.batches[0][0].shape == (1, 1)
    assert embed.batches[0][1].sum() == 0
    assert (found == 0).all(), "a zero vector stays zero"


def test_truncation_keeps_the_special_tokens_and_is_counted_once(bundle, caplog):
    embed = Recorder()
    with caplog.at_level(logging.WARNING, "cse"):
        encode(["the cat sat on the mat", "the cat sat on"], embed)
    assert embed.batches[0][0].shape == (2, MAX_LENGTH)
    assert (embed.batches[0][0][:, -1] == 3).all()
    assert [record.getMessage() for record in caplog.records] == ["1 of 2 distinct sentences were cut at 6 tokens"]
    caplog.clear()
    texts = ["the cat sat on the mat", "the cat", "the cat sat on the mat"]
    counted = OnnxEncoder(bundle, provider="cpu").encode_counting(texts)
    assert (counted.truncated, counted.distinct, counted.max_length) == (1, 2, MAX_LENGTH)
    assert caplog.records == []


WHOLE, TRUTH = "is not valid; give a whole number of at least 1", "normalize: expected True or False, found"
NO_TEXTS = (7, {"a dog", "cat"}, np.array("cat"), np.array([["cat", "dog"]]))


@pytest.mark.parametrize(
    ("sentences", "options", "message"),
    [
        *((bad, {}, f"sentences: expected a list of texts, found {type(bad).__name__}") for bad in NO_TEXTS),
        (["a dog", None], {}, r"sentences\[1\]: expected text, found NoneType; convert or drop it"),
        (["a dog", b"cat"], {}, r"sentences\[1\]: expected text, found bytes; convert or drop it"),
        *((["cat"], {"batch_size": bad}, f"batch_size: {bad!r} {WHOLE}") for bad in (0, True, "64")),
        *((["cat"], {"normalize": bad}, f"{TRUTH} {bad!r}") for bad in ("no", 0)),
        (["cat", "bad \ud800"], {}, r"text 'bad \\ud800': contains a lone surrogate; .*"),
        (["cat"], {"embed": lambda ids, _: np.zeros((1, 3), np.float32)}, r".* shape \(1, 3\) for 1 rows of width 8"),
    ],
)
def test_a_mistake_is_one_line(sentences, options, message):
    with pytest.raises(CseError, match=f"^{message}$") as caught:
        encode(sentences, **options)
    assert str(caught.value).isascii()


@pytest.mark.parametrize("workers", [1, 2])
def test_embedding_that_is_not_finite_names_the_first_such_sentence(workers):
    with pytest.raises(CseError, match=r"^sentences\[2\]: .*text starts 'a bad dog'") as caught:
        encode(["cat", "the dog sat", "a bad dog", "mat", "a bad dog"], workers=workers)
    assert "\n" not in str(caught.value)


def test_similarity_equals_a_float64_reference_and_shapes_must_match():
    random_numbers = np.random.default_rng(1)
    a, b = random_numbers.normal(size=(5, 16)), random_numbers.normal(size=(7, 16)) * 1e3
    reference = np.array([[x @ y / np.sqrt((x @ x) * (y @ y)) for y in b] for x in a])
    found = cosine_similarity(a, b)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference, atol=1e-6)
    np.testing.assert_allclose(cosine_similarity(a[0], b), reference[:1], atol=1e-6)
    assert cosine_similarity(a[0], b[0]).shape == (1, 1)
    assert (cosine_similarity(np.zeros(4), np.ones((3, 4))) == 0).all()
    for wrong in (np.ones((2, 5)), None, [[1.0], [1.0, 2.0]], {"a": 1}):
        with pytest.raises(CseError, match=r"do not match|^similarity: "):
            cosine_similarity(np.ones((2, 4)), wrong)
