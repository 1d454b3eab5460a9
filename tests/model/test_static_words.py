"""Word vectors from a text file: read right, refused with one line where they are not, averaged like any backbone."""

import numpy as np
import pytest

from cse.model.checkpoint import save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import read_words, words_of
from cse.stages.open_model import open_model
from tests.export.exports import bundle_of
from tests.rows import write_lines

VECTORS = {"the": [1, 0, 2], "cat": [0.5, -1, 3], "sleeps": [2, 2, 2], ",": [0, 0, 1], "\u00e9t\u00e9": [1, 1, 1]}


@pytest.fixture
def words(tmp_path):
    return write_lines(tmp_path / "glove.txt", (" ".join(map(str, [word, *VECTORS[word]])) for word in VECTORS))


@pytest.fixture
def encoder(words):
    return SentenceEncoder.load(words)


def average(sentence):
    """By hand: lower case, known words only."""
    known = [VECTORS[word] for word in sentence.lower().replace(",", " , ").split() if word in VECTORS]
    return np.mean(known, axis=0) if known else np.zeros(3)


SENTENCES = ["The cat sleeps", "the, the cat", "a dog in \u00e9t\u00e9", "nothing known here", "", "cat " * 60]


def test_a_sentence_is_the_average_of_its_known_words(encoder):
    found = encoder.encode(SENTENCES, normalize=False, batch_size=2)
    np.testing.assert_allclose(found, [average(text) for text in SENTENCES], atol=1e-6)


def test_only_wanted_words_are_kept(words):
    found, vectors = read_words(words, {"cat", "the", "dog"})
    assert (found, vectors.dtype) == (["the", "cat"], np.float32)
    np.testing.assert_array_equal(vectors, [VECTORS["the"], VECTORS["cat"]])
    assert words_of(["The cat, asleep"]) == {"The", "the", "cat", ",", "asleep"}


def test_words_with_blanks_a_count_line_and_repeated_words(tmp_path):
    path = tmp_path / "odd.vec"
    path.write_bytes(b"5 2\r\nat name@domain.com 1 2\r\n. . 3 4\r\ncat 5 6\r\ncat 7 8\r\nCat 1 0\r\n")
    found, vectors = read_words(path, None)
    assert found == ["at name@domain.com", ". .", "cat", "Cat"]
    np.testing.assert_array_equal(vectors, [[1, 2], [3, 4], [5, 6], [1, 0]])
    cased = SentenceEncoder.load(path).encode(["Cat", "cat"], normalize=False)
    np.testing.assert_array_equal(cased, [[1, 0], [5, 6]])


def test_checkpoint_and_bundle_do_without_the_file(encoder, words, tmp_path):
    expected = encoder.encode(SENTENCES)
    (tmp_path / "checkpoint").mkdir()
    save_checkpoint(encoder, tmp_path / "checkpoint")
    served = bundle_of(encoder, tmp_path / "bundle")
    words.unlink()
    np.testing.assert_array_equal(open_model(str(tmp_path / "checkpoint")).encode(SENTENCES), expected)
    np.testing.assert_allclose(served.encode(SENTENCES), expected, atol=1e-6)
