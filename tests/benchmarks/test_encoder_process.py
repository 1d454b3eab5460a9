"""A peer in a process of its own: it encodes what it is given, or says why not."""

import sys
import time

import numpy as np
import pytest

from benchmarks.peers.encoder_process import EncoderProcess
from benchmarks.peers.encoders import fastest, side_by_side
from cse.errors import CseError

TEXTS = ["a dog runs", "two men are sitting in the park today", "a cat"]


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
