"""A peer in a process of its own: it encodes what it is given, or says why not."""

import json
import sys
import time

import numpy as np
import pytest

from benchmarks.asking import LoadError
from benchmarks.inputs import backbone_folder
from benchmarks.peers.encoder_process import EncoderProcess
from benchmarks.peers.encoders import fastest, side_by_side
from cse import SentenceEncoder

TEXTS = ["a dog runs", "two men are sitting in the park today", "a cat"]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(TEXTS))
    return path


def test_a_peer_gives_the_vectors_of_the_same_model_in_the_same_order(texts):
    with backbone_folder("random:tiny") as folder:
        expected = SentenceEncoder.load(folder).encode(TEXTS)
        with EncoderProcess(sys.executable, "torch-fp32", folder, texts, "cpu") as peer:
            seconds = peer.seconds()
            vectors = peer.vectors()
            assert str(peer.facts["batch_size"]) in peer.facts["texts_per_s"][peer.facts["way"]]
            others, alone = peer.encode(TEXTS[::-1]), peer.encode(TEXTS[:2], alone=True)
    assert seconds > 0
    np.testing.assert_allclose(others, expected[::-1], atol=1e-5)
    np.testing.assert_allclose(alone, expected[:2], atol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3  # texts are told apart
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_peer_that_does_not_run_says_why(texts, tmp_path):
    with pytest.raises(LoadError, match="nowhere"):
        EncoderProcess(sys.executable, "torch-fp32", tmp_path / "nowhere", texts, "cpu")


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
