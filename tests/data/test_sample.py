"""The generated sample: the same everywhere, graded, and different for training and scoring."""

from collections import Counter
from hashlib import sha256

import numpy as np
import pytest

from cse.data.clean import overlap_key, overlap_keys
from cse.data.sample import GRADES, TOPICS, sample_pairs, sample_rows

FIRST_ROW = (
    "A weary secretary is taking on two salespeople at the headquarters early in the morning.",
    "At daybreak, an assistant is hiring two salespeople at the head office.",
    "A tired assistant is not taking on two salespeople at the headquarters early in the morning.",
)
ROWS_HASH = "19d1a820a3a0b117ea72b302b97a508d1d786f9f347b1c07566e36be610810a1"
PAIRS_HASH = "325af39e75ada22fcc2770829469215fae7181f2af224fa888a82eeb0ca598ec"


def test_recorded_rows_notice_any_change():
    rows = list(sample_rows("triplets", 3000, 42))
    pairs = sample_pairs("sample", 1000, 42)
    text = "\n".join("\t".join(row) for row in rows)
    scored = "\n".join(f"{a}\t{b}\t{s}" for a, b, s in zip(pairs.sentence1, pairs.sentence2, pairs.score, strict=True))
    assert rows[0] == FIRST_ROW
    assert sha256(text.encode()).hexdigest() == ROWS_HASH
    assert sha256(scored.encode()).hexdigest() == PAIRS_HASH


def test_views_are_the_first_columns_of_the_same_rows():
    triplets = list(sample_rows("triplets", 50, 1))
    assert list(sample_rows("pairs", 50, 1)) == [row[:2] for row in triplets]
    assert list(sample_rows("sentences", 50, 1)) == [row[:1] for row in triplets]
    assert triplets != list(sample_rows("triplets", 50, 2))


def test_rows_are_distinct_sentences_of_plain_english():
    rows = list(sample_rows("triplets", 2000, 7))
    assert len({row[0] for row in rows}) == 2000
    assert all(len(set(row)) == 3 for row in rows)
    assert all(text[0].isupper() and text.endswith(".") and text.isascii() for row in rows for text in row)
    assert not any("  " in text or "+" in text or "/" in text or "~" in text for row in rows for text in row)
    assert len({word for row in rows for text in row for word in text.split()}) > 600


def test_vocabulary_is_complete():
    assert len(TOPICS) == 14
    for topic in TOPICS:
        assert len(topic.agents) == 5
        assert len(topic.places) == 3
        assert len(topic.actions) == 5
        assert all(len(action.objects) >= 2 and action.verbs for action in topic.actions)


def test_pairs_cover_every_grade():
    pairs = sample_pairs("sample", 1000, 42)
    kinds = Counter(pairs.subset)
    assert set(kinds) == set(GRADES)
    assert min(kinds.values()) > 60
    assert pairs.score.dtype == np.float64
    assert (pairs.score.min(), pairs.score.max()) == (0.0, 5.0)
    assert all(GRADES[kind] == score for kind, score in zip(pairs.subset, pairs.score, strict=True))


def test_words_shared_are_no_sure_guide_to_the_grade():
    pairs = sample_pairs("sample", 1000, 42)
    halves = zip(pairs.sentence1, pairs.sentence2, strict=True)
    words = [(set(a.lower().split()), set(b.lower().split())) for a, b in halves]
    shared = np.array([len(a & b) / len(a | b) for a, b in words])
    correlation = np.corrcoef(shared, pairs.score)[0, 1]
    assert 0.4 < correlation < 0.9


@pytest.mark.parametrize("seed", [0, 42, 43])
def test_training_dev_and_test_share_hardly_a_sentence(seed):
    train = [text for row in sample_rows("triplets", 3000, seed) for text in row]
    dev, test = sample_pairs("sample-dev", 500, seed), sample_pairs("sample", 1000, seed)
    held_out = overlap_keys(dev.sentence1 + dev.sentence2 + test.sentence1 + test.sentence2)
    assert len(held_out) > 2500
    assert sum(overlap_key(text) in held_out for text in train) < 0.005 * len(train)
    assert len(set(dev.sentence1) & set(test.sentence1)) <= 3
