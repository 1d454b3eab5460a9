import numpy as np
import pytest

from cse.errors import CseError
from cse.runtime.bundle import MODEL, TOKENIZER
from cse.runtime.onnx_encoder import OnnxEncoder

from .conftest import DIMENSION, MAX_LENGTH, WORDS, make_table, make_tokenizer, masked_mean, reseal, write_model

SENTENCES = ["the cat sat", "a dog", "", "mat", "a dog sat on the mat", "zebra", "the cat sat"] * 3


def reference(sentences):
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(MAX_LENGTH)
    rows = [np.array([tokenizer.encode(text).ids]) for text in sentences]
    vectors = np.concatenate([masked_mean(ids, np.ones_like(ids)) for ids in rows])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_embeddings_equal_numpy_on_any_number_of_threads(bundle, threads):
    encoder = OnnxEncoder(bundle, provider="cpu", threads=threads)
    assert (encoder.dimension, encoder.max_length, encoder.provider) == (DIMENSION, MAX_LENGTH, "cpu")
    assert len(SENTENCES) >= 4 * threads, "enough rows to be shared out"
    np.testing.assert_allclose(encoder.encode(SENTENCES, batch_size=2), reference(SENTENCES), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(SENTENCES[:3]), reference(SENTENCES[:3]), atol=1e-6)
    assert bool(encoder._one_core) == (threads > 1), "the second session is opened only when it is used"


@pytest.mark.parametrize("direction", ["right", "left"])
def test_rows_are_those_of_the_texts_where_the_tokenizer_pads_and_cuts(bundle, direction):
    tokenizer = make_tokenizer()
    tokenizer.enable_padding(length=20, direction=direction)
    tokenizer.enable_truncation(3)  # less than "[CLS] a [SEP]" has with one more
    tokenizer.save(str(bundle / TOKENIZER))
    reseal(bundle)
    encoder = OnnxEncoder(bundle, provider="cpu", threads=1)
    texts = ["a dog sat", "mat", "the cat sat on"]
    tokens = encoder.tokenize(texts)
    assert tokens.lengths.tolist() == [5, 3, 6]
    own = [[2, *(WORDS.index(word) for word in text.split()), 3] for text in texts]
    assert [tokens.row(index).tolist() for index in range(3)] == own
    rows = [tokens.row(index) for index in range(3)]
    wanted = encoder.encode(texts, normalize=False)
    np.testing.assert_allclose(encoder.embed_rows(rows), wanted, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([encoder.embed_rows([row]) for row in rows]), wanted, atol=1e-6)


def test_rows_that_the_graph_cannot_take_are_one_line(bundle):
    """For instance more tokens than it has positions: here its table of words is too short."""
    write_model(bundle / MODEL, make_table()[:5])
    reseal(bundle)
    encoder = OnnxEncoder(bundle, provider="cpu", threads=1)
    assert encoder.encode("the").shape == (DIMENSION,)
    with pytest.raises(CseError, match=r"failed on 1 rows of 3 tokens: .*max_length 6\) is wrong$") as caught:
        encoder.encode("mat")
    assert "\n" not in str(caught.value)


def test_file_that_is_no_tokenizer_is_named(bundle):
    (bundle / TOKENIZER).write_text("{}")
    reseal(bundle)
    with pytest.raises(CseError, match=r"tokenizer\.json: not a tokenizer"):
        OnnxEncoder(bundle, provider="cpu")
