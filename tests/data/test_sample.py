"""The generated sample: the same everywhere, graded, and different for training and scoring."""

from hashlib import sha256

from cse.data.sample import sample_pairs, sample_rows

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
